"""What the client's Python layer can do to flows and sessions but has no public method for.

Only `newest_error`, `provision_queue`, `repeat_inbox`, `destroy`, `end_browser`, `break_off` and `release` block. When
the transport was opened, `library.missing_parts` checked that all of it exists, except for what `newest_error`,
`let_go` and `end_browser` can do without. A `handle` is a receiver's `flow_p` itself: the client empties it when it has
freed the flow, and the client's functions then do nothing and report that. A copied number could belong to another flow
by then.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from ctypes import (
    CFUNCTYPE,
    POINTER,
    byref,
    c_char_p,
    c_int,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
    cast,
    create_string_buffer,
)
from enum import Enum
from itertools import count
from types import FunctionType, MethodType
from typing import Any

from lbg_runtime.model.ids import DeliveryId
from lbg_runtime.model.topic import LARGEST_TOPIC_BYTES
from lbg_runtime.transport.solace.errors import is_of_clean_up
from lbg_runtime.transport.solace.library import (
    CORE,
    FLOW_RESUME_FAILURE,
    SOLCLIENT_ENDPOINT_PROP_ACCESSTYPE,
    SOLCLIENT_ENDPOINT_PROP_ACCESSTYPE_EXCLUSIVE,
    SOLCLIENT_ENDPOINT_PROP_DURABLE,
    SOLCLIENT_ENDPOINT_PROP_ID,
    SOLCLIENT_ENDPOINT_PROP_NAME,
    SOLCLIENT_ENDPOINT_PROP_QUEUE,
    SOLCLIENT_FLOW_PROP_WINDOWSIZE,
    SOLCLIENT_OK,
    SOLCLIENT_PROP_ENABLE_VAL,
    SOLCLIENT_PROVISION_FLAGS_IGNORE_EXIST_ERRORS,
    SOLCLIENT_SUBSCRIBE_FLAGS_WAITFORCONFIRM,
    START_METHOD,
    ClientOutcome,
    FlowEventCode,
    ServiceState,
    flow_event_callback_type,
    get_last_error_info,
    native,
    prepare_array,
)

INBOX_PROPERTY = b"SESSION_REPLY_TO_DEFAULT_DEST"
"""The property that has the topic of a session's own inbox."""

WATERMARK = 1
"""The length of the client's queue at which it calls its handlers, which do nothing here: any value will do."""


REFUSAL_PATIENCE_S = 1.0
"""How long to wait for a refusal that is known to be on its way; it was seen to take 4 ms at most."""

ERROR_PATIENCE_S = 1.0
"""How long a session's own thread may take to name its last error: it may be looking up the address of a host."""

ONCE = 0
"""The kind of a timer that the library calls only once."""


class NativeFlowEvent(Enum):
    """The events of a flow that matter here."""

    ACTIVE = "active"
    INACTIVE = "inactive"
    DOWN = "down"
    REBOUND = "rebound"
    """The library bound the flow again after an outage, by itself."""
    REBIND_REFUSED = "rebind_refused"
    """The library tried to bind the flow again, and the broker refused. The library does not try once more."""


class LoginRight(Enum):
    """A right that a connection gets or lacks at its login, whatever is changed later."""

    RECEIVE = "SUB_FLOW_GUARANTEED"
    SEND = "PUB_GUARANTEED"
    TRANSACT = "TRANSACTED_SESSION"


_SETTINGS = {
    LoginRight.RECEIVE: "receive (allowGuaranteedMsgReceiveEnabled of its client profile)",
    LoginRight.SEND: "publish (allowGuaranteedMsgSendEnabled of its client profile)",
    LoginRight.TRANSACT: "publish in transactions (allowTransactedSessionsEnabled of its client profile)",
}


class BindAnswer:
    """The broker's answer to the first bind of a receiver. Written on the client's network thread."""

    def __init__(self) -> None:
        self.bound = threading.Event()
        self._refused = threading.Event()
        self._refusal: Exception | None = None

    def refuse(self, refusal: Exception) -> None:
        """The broker has refused the bind."""
        self._refusal = refusal
        self._refused.set()

    def reason_of(self, raised: Exception) -> Exception:
        """Why `start` raised this: what the broker said, if it was the broker. Blocks for a moment.

        The client looks the error up after the library has returned. Of binds that were refused at the same time, 1 in
        13 found there an error of the library's own clean-up (docs/protocol.md). The news of the refusal may then still
        be on its way.
        """
        if is_of_clean_up(raised):
            self._refused.wait(REFUSAL_PATIENCE_S)
        return self._refusal or raised


def watch_events(receiver: Any, post: Callable[[NativeFlowEvent, str], object]) -> BindAnswer:
    """Have `post` called with each event of the receiver and its text, on the client's network thread; but the answer
    to the first bind goes to what this returns.

    Call before `start`. The client's own listeners do not report a refused re-bind, after which a receiver looks alive
    and is not. `post` must neither raise nor block.
    """
    inner = receiver._event_callback_func_routine
    answer = BindAnswer()
    bound = answer.bound

    def on_event(flow: Any, info: Any, user: Any) -> Any:
        code = info.contents.flow_event
        text = (info.contents.info_p or b"").decode(errors="replace")
        if code == FlowEventCode.SOLCLIENT_FLOW_EVENT_BIND_FAILED_ERROR.value and not bound.is_set():
            # Fetched now: the library keeps the error per thread, until the thread's next call.
            answer.refuse(get_last_error_info(info.contents.response_code, "bind"))
        # The client's own callback first, so that it has registered the end of a flow before anybody acts on it.
        result = inner(flow, info, user)
        if code == FlowEventCode.SOLCLIENT_FLOW_EVENT_UP_NOTICE.value:
            if bound.is_set():
                post(NativeFlowEvent.REBOUND, text)
            bound.set()
        elif code == FlowEventCode.SOLCLIENT_FLOW_EVENT_ACTIVE.value:
            post(NativeFlowEvent.ACTIVE, text)
        elif code == FlowEventCode.SOLCLIENT_FLOW_EVENT_INACTIVE.value:
            post(NativeFlowEvent.INACTIVE, text)
        elif code == FlowEventCode.SOLCLIENT_FLOW_EVENT_DOWN_ERROR.value:
            post(NativeFlowEvent.DOWN, text)
        elif code == FlowEventCode.SOLCLIENT_FLOW_EVENT_BIND_FAILED_ERROR.value and bound.is_set():
            post(NativeFlowEvent.REBIND_REFUSED, text)
        return result

    receiver._event_callback_func_routine = flow_event_callback_type(on_event)
    return answer


def is_bound_without_handle(error: BaseException) -> bool:
    """Whether `start` failed after the client considered the bind done: the broker may hold a flow that nobody can end.

    Seen in 1 of 100 binds made right after the client reported the connection restored (client 1.11.0).
    """
    return str(error).startswith(FLOW_RESUME_FAILURE)


def take_window_over(receiver: Any) -> None:
    """Stop the client from closing and opening the window by the length of its own queue. Call before `start`.

    Messages leave its queue for ours at once, so the length says nothing; and if the client opened the window, it would
    undo our closing.
    """
    receiver.receiver_queue.register_on_high_watermark(_do_nothing, WATERMARK)
    receiver.receiver_queue.register_on_low_watermark(_do_nothing, WATERMARK)


def set_window(receiver: Any, messages: int) -> None:
    """Let at most this many messages, 1 to 255, be in transit to the receiver. Call before `start`."""
    receiver._config[SOLCLIENT_FLOW_PROP_WINDOWSIZE] = str(messages)
    receiver._flow_arr = prepare_array(receiver._config)


def keep_window_closed(receiver: Any) -> None:
    """Have the receiver's `start` leave the window as it was created: closed. Call before `start`.

    The client creates every flow with its window closed, and the part of `start` that creates the flow then calls
    `resume` of its module. This receiver gets a copy of that part that calls `pause` instead, so that the window is
    never open, not even for a moment. Where `resume` would fail, because the flow was lost right after its bind
    (`is_bound_without_handle`), `pause` may not; then the missing answer to the bind reveals that.
    """
    part = getattr(type(receiver), START_METHOD)
    closed = FunctionType(part.__code__, {**part.__globals__, "resume": native.pause}, part.__name__)
    setattr(receiver, START_METHOD, MethodType(closed, receiver))


def set_intake(handle: Any, *, is_open: bool) -> None:
    """Open or close the window. If it is so already, this only flushes acknowledgements."""
    (native.resume if is_open else native.pause)(handle)


def accept(handle: Any, delivery_id: DeliveryId) -> bool:
    """Accept by number, so that no native message need be kept; False if the client did not take it."""
    # By the function for all outcomes, as the one for acceptances needs the message.
    return bool(native.nack_message(handle, c_uint64(delivery_id), ClientOutcome.ACCEPTED) == SOLCLIENT_OK)


def destroy(service: Any, receiver: Any) -> None:
    """Free the native flow, unless the client has done so or the session is gone. Blocks."""
    if service.session_pointer and receiver.flow_p:
        CORE.solClient_flow_destroy(byref(receiver.flow_p))


def end_browser(browser: Any) -> None:
    """Free the flow of a browser that was asked to start, whether or not it has; raises the client's errors.

    Blocks for a moment. The client's `terminate` refuses a browser that is still starting. The flow of a browser that
    the broker has ended, it leaves to the garbage collector, which may come while the session is being freed.
    """
    if browser.is_running():
        browser.terminate()
    finalizer = getattr(browser, "_finalizer", None)
    if finalizer is not None:
        finalizer()


def let_go(receiver: Any) -> None:
    """Let the garbage collector have a receiver whose flow or session is freed; otherwise the client would keep it for
    the life of the process.

    Not before that: the library calls functions that the receiver holds, and to call one that has been collected
    crashes the process.
    """
    finalizer = getattr(receiver, "_finalizer", None)
    if finalizer is not None:
        finalizer.detach()
    # The first of a receiver of a queue, the second of a receiver of direct messages.
    for name in ("_persistent_message_receiver_thread_holder", "_message_receiver_thread_holder"):
        holder = getattr(receiver, name, None)
        if holder is not None:
            holder.value = None


def break_off(service: Any) -> None:
    """Make the client's `connect` of a service, which blocks on another thread, fail now; does nothing before that has
    begun.

    Disconnects a session that is connected already. Must not be called while the session is being freed.
    """
    # Not by the service's own `disconnect`, which would change what `connect` is about to look at.
    if service.session_pointer:
        CORE.solClient_session_disconnect(service.session_pointer)


def release(service: Any) -> None:
    """Free the native session and its thread, unless the client has done so. Blocks.

    The client keeps both for the life of the process when connecting failed or the session ended by itself.
    """
    service.session.session_cleanup()
    # The finalizer refers to the service, by way of the session: without this, neither would ever be collected.
    finalizer = getattr(service, "_service_finalizer", None)
    if finalizer is not None:
        finalizer.detach()


def forget_failed(receiver: Any) -> None:
    """Undo the registration with the session that a receiver leaves behind when its `start` fails."""
    receiver._handle_events_on_terminate()


def set_sender_timestamp(outbound: Any, sent_at_ms: int) -> None:
    """Stamp a message to be published; milliseconds since the epoch."""
    CORE.solClient_msg_setSenderTimestamp(outbound.solace_message.msg_p, c_int64(sent_at_ms))


def is_coming_back(service: Any) -> bool:
    """Whether the connection is lost and the client has not yet reported that it is back."""
    return bool(service.state is ServiceState.RECONNECTING)


def missing_right(service: Any, right: LoginRight) -> str | None:
    """The error text if the session's last login lacked this right; None if it had it, or the session is gone.

    Does not ask the broker, and never blocks. Must not be called while the session is being freed.
    """
    session = service.session_pointer
    # The library returns one byte, of which ctypes makes a number.
    if not session or CORE.solClient_session_isCapable(session, f"SESSION_CAPABILITY_{right.value}".encode()) & 0xFF:
        return None
    return f"this connection logged in without the right to {_SETTINGS[right]}, which counts from the next login on"


def newest_error(service: Any) -> Exception | None:
    """The last error on the session's own thread: during an outage, why the last attempt to reconnect failed.

    The library keeps errors per thread, so this has the session's thread fetch it. None if the thread did not do so in
    time, or this client has no way to ask. Blocks for a moment. Must not be called while the session is being freed.
    """
    context = getattr(service.session, "_context_p", None)
    start_timer = getattr(CORE, "solClient_context_startTimer", None)
    if context is None or start_timer is None:
        return None
    number, answer = next(_error_numbers), Future[Exception]()
    _awaited_errors[number] = answer
    try:
        start_timer(context, c_int(ONCE), c_uint32(1), _tell_error, c_void_p(number), byref(c_uint32()))
        return answer.result(ERROR_PATIENCE_S)
    except TimeoutError:
        return None
    finally:
        del _awaited_errors[number]


def repeat_inbox(service: Any) -> None:
    """Make the broker answer, by asking once more for a subscription below the session's own inbox.

    Blocks until the answer is there, for 10 s at most; raises the client's errors.
    """
    session = service.session_pointer
    inbox = create_string_buffer(LARGEST_TOPIC_BYTES + 1)
    code = CORE.solClient_session_getProperty(session, INBOX_PROPERTY, inbox, c_size_t(len(inbox)))
    if code == SOLCLIENT_OK:
        code = CORE.solClient_session_topicSubscribeExt(session, SOLCLIENT_SUBSCRIBE_FLAGS_WAITFORCONFIRM, inbox)
    if code != SOLCLIENT_OK:
        raise get_last_error_info(code, "subscribe to the inbox")


def provision_queue(service: Any, queue: str, subscriptions: Sequence[str]) -> None:
    """Create an exclusive durable queue and its subscriptions if missing. Blocks; raises the client's errors.

    The client does the same when a receiver starts, but a receiver would take messages, which would go back flagged.
    """
    properties = prepare_array(
        {
            SOLCLIENT_ENDPOINT_PROP_ID: SOLCLIENT_ENDPOINT_PROP_QUEUE,
            SOLCLIENT_ENDPOINT_PROP_DURABLE: SOLCLIENT_PROP_ENABLE_VAL,
            SOLCLIENT_ENDPOINT_PROP_ACCESSTYPE: SOLCLIENT_ENDPOINT_PROP_ACCESSTYPE_EXCLUSIVE,
            SOLCLIENT_ENDPOINT_PROP_NAME: queue,
        }
    )
    session = service.session_pointer
    _ask_ahead(properties, session, subscriptions)
    code = native.end_point_provision(properties, session, ignore_already_provisioned=True)
    if code != SOLCLIENT_OK:
        raise get_last_error_info(code, "provision")
    for subscription in subscriptions:
        code = native.topic_endpoint_subscribe(properties, session, subscription)
        if code != SOLCLIENT_OK:
            raise get_last_error_info(code, f"subscribe {subscription}")


def _ask_ahead(properties: Any, session: Any, subscriptions: Sequence[str]) -> None:
    """Send all requests for a queue without waiting for answers; the caller must ask whether they have succeeded.

    So a queue exists without its subscriptions only for as long as the broker takes, not for a round trip for each.
    """
    queue, no_tag = cast(properties, POINTER(c_char_p)), c_char_p()
    ignores_existing = c_int(SOLCLIENT_PROVISION_FLAGS_IGNORE_EXIST_ERRORS)
    CORE.solClient_session_endpointProvision(queue, session, ignores_existing, no_tag, c_char_p(), c_int(0))
    for subscription in subscriptions:
        topic = c_char_p(subscription.encode())
        CORE.solClient_session_endpointTopicSubscribe(queue, session, c_int(0), topic, no_tag)


def _do_nothing() -> None:
    return


_error_numbers = count(1)
_awaited_errors: dict[int, Future[Exception]] = {}


def _take_error(_: int, number: int) -> None:
    if (awaited := _awaited_errors.get(number)) is not None:
        awaited.set_result(get_last_error_info(SOLCLIENT_OK, "connect again"))


_tell_error = CFUNCTYPE(None, c_void_p, c_void_p)(_take_error)
"""Made once for the module, and not for each call: the library may call it when nobody waits any more."""
