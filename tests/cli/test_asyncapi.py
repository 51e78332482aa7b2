"""`lbg asyncapi` on the handlers as shipped, as YAML and as JSON."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.patience import PATIENCE_S

pytestmark = pytest.mark.real_time

ROOT = Path(__file__).parents[2]


def test_both_forms_say_the_same_of_the_handlers_as_shipped(lbg):
    told = json.loads(lbg(ROOT, "asyncapi", "--json", "--app-version", "3.1").stdout)
    assert yaml.safe_load(lbg(ROOT, "asyncapi", "--app-version", "3.1").stdout) == told
    assert told["info"]["version"] == "3.1"
    assert [channel["address"] for channel in told["channels"].values()] == ["orders-hash/{shard}/orders/{rest}"]


def test_settings_without_handlers_are_a_mistake_of_one_line(lbg, tmp_path):
    (tmp_path / "config.yaml").write_text("group: {name: o, hash_prefix: h, hash_count: 4, queue_count: 1}\n")
    said = lbg(tmp_path, "asyncapi")
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr.splitlines()[-1].startswith("lbg: handlers: none; expected modules")


def test_the_document_is_one_where_the_output_is_not_utf_8_too(tmp_path):
    """What its encoding had not was there by Python's escapes, which YAML without quotes takes for text."""
    (tmp_path / "shop.py").write_text(
        """
from lbg_runtime import Handlers
handlers = Handlers()
@handlers.handler("bücher/€/>")
async def handle(message): pass
"""
    )
    group = "{name: o, hash_prefix: h, hash_count: 4, queue_count: 1}"
    (tmp_path / "config.yaml").write_text(f"group: {group}\nhandlers: [shop]\n")
    said = subprocess.run(
        [sys.executable, "-m", "lbg_runtime.cli", "asyncapi"],
        cwd=tmp_path, env={**os.environ, "PYTHONIOENCODING": "latin-1"}, capture_output=True, timeout=PATIENCE_S,
        check=True,
    )  # fmt: skip
    (channel,) = yaml.safe_load(said.stdout.decode("ascii"))["channels"].values()
    assert channel["address"] == "h/{shard}/bücher/€/{rest}"
