"""A trust store that cannot be used is told of as what it is: one that is taken for empty would trust nobody."""

from pathlib import Path

import pytest

from lbg_runtime.config.connection_settings import TlsSettings
from lbg_runtime.config.trust import trust
from lbg_runtime.model.errors import ConfigError


@pytest.mark.parametrize("store", ["gone", "rubbish", "store"])
def test_a_trust_store_that_is_none_is_refused(tmp_path: Path, store: str) -> None:
    (tmp_path / "store").mkdir()
    for rubbish in (tmp_path / "rubbish", tmp_path / "store" / "rubbish"):
        rubbish.write_text("no certificate")
    with pytest.raises(ConfigError, match=rf"^sidecar\.tls\.trust_store: {tmp_path / store}.+; expected a file"):
        trust(TlsSettings(trust_store=str(tmp_path / store)), "sidecar.tls")
