"""Chooses the path that the flows and publishers of a transport take: the fast one, or the public one."""

from functools import partial

import structlog

from lbg_runtime.config.settings import ClientPathChoice
from lbg_runtime.model.errors import ConfigError
from lbg_runtime.transport.solace.fast import check, compiled, publish_check
from lbg_runtime.transport.solace.fast.calls import FastCalls, address_of
from lbg_runtime.transport.solace.fast.compiled_reader import reader_of
from lbg_runtime.transport.solace.fast.compiled_writer import writer_of
from lbg_runtime.transport.solace.fast.gathering import Gathering
from lbg_runtime.transport.solace.fast.path import PATIENCE_S, FastPath
from lbg_runtime.transport.solace.fast.publish import FastPublisher
from lbg_runtime.transport.solace.fast.publish_calls import PublishCalls
from lbg_runtime.transport.solace.inbox import Inbox
from lbg_runtime.transport.solace.public_path import PublicPath
from lbg_runtime.transport.solace.publisher import MakePublisher, PublicPublisher
from lbg_runtime.transport.solace.receive_path import MakePath, PathOwner, ReceivePath
from lbg_runtime.transport.solace.trace_context import TraceContexts, vendor_traces

_log = structlog.get_logger(__name__)


def choose_paths(
    choice: ClientPathChoice, *, carries_traces: bool = False
) -> tuple[ClientPathChoice, MakePath, MakePublisher]:
    """How one transport receives and publishes: the path for receiving (never `auto`), and the makers of receive paths
    and publishers, for use on one loop. Raises `ConfigError` if the choice is `fast` and that is impossible.

    `carries_traces`: see `SolaceSettings`.
    """
    traces = vendor_traces() if carries_traces else None
    make_public = partial(PublicPublisher, traces=traces)
    if choice is ClientPathChoice.PUBLIC or not _is_usable(choice, check.unexpected(), "receive_path_is_public"):
        # Whatever rules out the fast path for receiving rules it out for publishing as well, and is logged by now.
        return ClientPathChoice.PUBLIC, partial(PublicPath, traces=traces), make_public
    if not _is_usable(choice, publish_check.unexpected(), "publish_path_is_public"):
        return ClientPathChoice.FAST, _fast_paths(traces), make_public
    calls = PublishCalls()
    make_fast = partial(FastPublisher, calls, writer_of(calls, traces), traces=traces)
    return ClientPathChoice.FAST, _fast_paths(traces), make_fast


def _is_usable(choice: ClientPathChoice, surprise: str | None, event: str) -> bool:
    if surprise is None:
        return True
    if choice is ClientPathChoice.FAST:
        raise ConfigError("transport.client_path", f"fast, and {surprise}", "auto or public with this client")
    _log.warning(event, reason=surprise)
    return False


def _fast_paths(traces: TraceContexts | None) -> MakePath:
    calls = FastCalls()
    read = reader_of(calls, traces)
    gathering: Gathering | None = None

    def make(inbox: Inbox, owner: PathOwner) -> ReceivePath:
        nonlocal gathering
        # One gathering for all flows: a transport has one inbox, even if it is opened again.
        if compiled.INTAKE is not None and gathering is None:
            gathering = Gathering(compiled.INTAKE, inbox, address_of(calls.free), PATIENCE_S)
        return FastPath(calls, read, inbox, owner, gathering)

    return make
