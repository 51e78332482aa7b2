"""Loading the client changes nothing for the application around it."""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.config.connection_settings import ConnectionSettings
from lbg_runtime.model.errors import ConfigError, ConnectFailed
from lbg_runtime.runtime.session import open_session
from lbg_runtime.transport.solace import client as solace_client
from lbg_runtime.transport.solace.errors import subcode_and_reason
from lbg_runtime.transport.solace.settings import SolaceSettings
from lbg_runtime.transport.solace.transport import SolaceTransport
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.real_time

LOGGING = """
import logging, logging.config, sys, tempfile
with tempfile.NamedTemporaryFile("w+") as log:
    logging.basicConfig(filename=log.name, filemode="w", level=logging.INFO)
    logging.getLogger("before").info("before")
    configure = logging.config.dictConfig
    import lbg_runtime.transport.solace.library
    assert logging.config.dictConfig is configure
    logging.getLogger("after").info("after")
    logging.getLogger("solace.messaging.core").warning("of the client")
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("solace.") and isinstance(logger, logging.Logger):
            assert (logger.handlers, logger.propagate, logger.level) == ([], True, logging.NOTSET), name
    logging.shutdown()
    lines = open(log.name).read().splitlines()
    assert [line.rpartition(":")[2] for line in lines] == ["before", "after", "of the client"], lines
"""

SILENCE = """
import logging
import lbg_runtime.transport.solace.library
logging.getLogger("solace.messaging.receiver").warning("of the client")
"""

LAZINESS = """
import sys
import lbg_runtime.transport.solace.transport, lbg_runtime.transport.solace.settings
assert not [name for name in sys.modules if name.partition(".")[0] == "solace"]
"""


@pytest.mark.parametrize("program", [LOGGING, SILENCE, LAZINESS], ids=["logging", "silence", "laziness"])
def test_the_client_is_loaded_late_and_leaves_logging_alone(program: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_a_client_that_was_not_compiled_at_its_installation_is_loaded_without_a_warning(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-W", "error", "-X", f"pycache_prefix={tmp_path}", "-c", SILENCE],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


async def test_a_client_that_lacks_something_is_refused_at_the_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    from lbg_runtime.transport.solace import library, native

    monkeypatch.setattr(library, "_PARTS", ((native, ("something_new",)),))
    transport = SolaceTransport(SolaceSettings(hosts=("tcp://127.0.0.1:1",), client_name="first"))
    with pytest.raises(ConnectFailed, match=r"solace-pubsubplus 1\.11\.\d+ lacks something_new") as failure:
        await transport.open()
    assert (failure.value.permanent, failure.value.expected) == (True, "solace-pubsubplus 1.11")
    await transport.close()


@pytest.mark.parametrize(
    ("module", "installed"),
    [("solace.messaging.config._sol_constants", "solace-pubsubplus 1.10.0"), ("solace", "not installed")],
)
async def test_a_client_of_another_version_or_none_is_named_with_the_one_that_is_needed(
    module: str, installed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As versions before 1.11 do, of which one constant cannot be imported.
    def version(_: str) -> str:
        if module == "solace":
            raise PackageNotFoundError("solace-pubsubplus")
        return "1.10.0"

    monkeypatch.delitem(sys.modules, "lbg_runtime.transport.solace.library", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(solace_client, "version", version)
    settings = ConnectionSettings.model_validate({"transport": "solace", "host": "tcp://127.0.0.1:1"})
    told = rf"the client cannot be loaded, which is {installed}: .*; expected solace-pubsubplus 1\.11$"
    with pytest.raises(ConfigError, match=told):
        async with open_session(settings, client_name="first"):
            pass


async def test_a_client_that_starts_flows_in_another_way_is_refused_at_the_opening(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from lbg_runtime.transport.solace import library

    monkeypatch.setitem(library.flow_props, library.SOLCLIENT_FLOW_PROP_START_STATE, "1")
    assert "lacks a start that opens the window by `resume`" in str(library.missing_parts())


async def test_an_error_whose_text_ends_within_a_character_is_one_like_others(broker: BrokerServer) -> None:
    # The client's library keeps 255 bytes of it.
    address = broker.url
    transport = SolaceTransport(SolaceSettings(hosts=(address,), client_name="first", vpn="x" + "ä" * 150))
    with pytest.raises(ConnectFailed, match=r"'SESSION_VPN_NAME' with value 'xä+$"):
        await transport.open()
    await transport.close()


def test_the_last_error_has_its_number_where_its_text_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from lbg_runtime.transport.solace import library

    def cut(*_: object) -> Exception:
        raise UnicodeDecodeError("utf-8", "Unknown Queue ä".encode()[:-1], 14, 15, "unexpected end of data")

    # No destination: refused by the library, which so has an error of its own on this thread.
    assert library.CORE.solClient_session_sendMsg(None, None) != library.SOLCLIENT_OK
    number = library.get_last_error_info(-1, "publish").sub_code
    monkeypatch.setattr(library, "_get_last_error_info", cut)
    assert subcode_and_reason(library.get_last_error_info(-1, "publish")) == (number, "Unknown Queue")
    assert number
