"""Which receive path the flows of a transport take."""

from functools import partial

import structlog

from lbg_runtime.config.settings import ReceivePathChoice
from lbg_runtime.model.errors import ConfigError
from lbg_runtime.transport.solace.fast_calls import FastCalls
from lbg_runtime.transport.solace.fast_check import unexpected
from lbg_runtime.transport.solace.fast_path import FastPath
from lbg_runtime.transport.solace.fast_reader import message_reader
from lbg_runtime.transport.solace.public_path import PublicPath
from lbg_runtime.transport.solace.receive_path import MakePath

_log = structlog.get_logger(__name__)


def choose_path(choice: ReceivePathChoice) -> MakePath:
    """How to make the paths of one transport, for its loop alone; raises `ConfigError` where `fast` is impossible."""
    if choice is ReceivePathChoice.PUBLIC:
        return PublicPath
    surprise = unexpected()
    if surprise is None:
        calls = FastCalls()
        return partial(FastPath, calls, message_reader(calls))
    if choice is ReceivePathChoice.FAST:
        raise ConfigError("transport.receive_path", f"fast, and {surprise}", "auto or public with this client")
    _log.warning("receive_path_is_public", reason=surprise)
    return PublicPath
