"""Which receive path the flows of a transport take."""

import structlog

from lbg_runtime.config.settings import ClientPathChoice
from lbg_runtime.model.errors import ConfigError
from lbg_runtime.transport.solace.fast import compiled
from lbg_runtime.transport.solace.fast.calls import FastCalls, address_of
from lbg_runtime.transport.solace.fast.check import unexpected
from lbg_runtime.transport.solace.fast.compiled_reader import reader_of
from lbg_runtime.transport.solace.fast.gathering import Gathering
from lbg_runtime.transport.solace.fast.path import PATIENCE_S, FastPath
from lbg_runtime.transport.solace.inbox import Inbox
from lbg_runtime.transport.solace.public_path import PublicPath
from lbg_runtime.transport.solace.receive_path import MakePath, PathOwner, ReceivePath

_log = structlog.get_logger(__name__)


def choose_path(choice: ClientPathChoice) -> MakePath:
    """How to make the paths of one transport, for its loop alone; raises `ConfigError` where `fast` is impossible."""
    if choice is ClientPathChoice.PUBLIC:
        return PublicPath
    surprise = unexpected()
    if surprise is None:
        return _fast_paths()
    if choice is ClientPathChoice.FAST:
        raise ConfigError("transport.client_path", f"fast, and {surprise}", "auto or public with this client")
    _log.warning("receive_path_is_public", reason=surprise)
    return PublicPath


def _fast_paths() -> MakePath:
    calls = FastCalls()
    read = reader_of(calls)
    gathering: Gathering | None = None

    def make(inbox: Inbox, owner: PathOwner) -> ReceivePath:
        nonlocal gathering
        # A transport that is opened again has another inbox.
        if compiled.INTAKE is not None and (gathering is None or gathering.inbox is not inbox):
            gathering = Gathering(compiled.INTAKE.Intake, inbox, address_of(calls.free), PATIENCE_S)
        return FastPath(calls, read, inbox, owner, gathering)

    return make
