"""The example of docs/publishing.md publishes what it says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lbg_runtime.testing import BrokerOnPort
from tests.docs.pages import ROOT, blocks
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.real_time

SETTINGS = """
connection: {{transport: solace, host: "{host}"}}
group: {{name: shop, hash_prefix: shop-hash, hash_count: 4, queue_count: 1}}
"""


def test_the_example_publishes(tmp_path: Path, lbg_broker: BrokerOnPort) -> None:
    lbg_broker.create_queue("shop/0", "shop-hash/>")
    (tmp_path / "config.yaml").write_text(SETTINGS.format(host=lbg_broker.url))
    (example,) = blocks(ROOT / "docs" / "publishing.md", "python")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", example], cwd=tmp_path, env=environment, timeout=PATIENCE_S, check=True)
    assert lbg_broker.queue_status("shop/0").depth == 1_001
