"""Registering handlers, and one clear line for each mistake."""

import functools
import re
from enum import StrEnum

import pytest
from structlog.testing import capture_logs

from lbg_runtime.model.errors import HandlerError
from lbg_runtime.runtime.handlers.batches import Batch
from lbg_runtime.runtime.handlers.registry import Handlers


async def _first(message):
    pass


async def _second(message):
    pass


async def _with_first(first, message):
    pass


def test_the_handler_registered_first_takes_a_topic_that_several_want():
    handlers = Handlers()
    handlers.handler("orders/*/new")(_first)
    handlers.handler("orders/>", "bills")(_second)
    assert handlers.find("orders/eu/new").function is _first
    assert handlers.find("orders/eu/old").function is _second
    assert handlers.find("bills").function is _second
    assert handlers.find("bills/new") is None


def test_a_member_of_an_enum_of_topics_is_its_topic():
    class Topic(StrEnum):
        NEW = "orders/new"

    handlers = Handlers()
    handlers.handler(Topic.NEW)(_first)
    assert [type(each) for each in handlers.subscriptions] == [str]
    with pytest.raises(HandlerError, match="a second handler for 'orders/new'"):
        handlers.handler(Topic.NEW)(_second)


def test_the_decorated_function_stays_what_it_was():
    handlers = Handlers()
    assert handlers.handler("orders/>")(_first) is _first


def test_methods_and_functions_with_defaults_can_be_handlers():
    class Shop:
        async def on_order(self, message):
            pass

    async def with_default(message, dry_run=False):
        pass

    handlers = Handlers()
    handlers.handler("a")(Shop().on_order)
    handlers.handler("b")(with_default)
    assert len(handlers) == 2


class _Called:
    async def __call__(self, message):
        pass


@pytest.mark.parametrize(
    ("function", "named"), [(functools.partial(_with_first, 1), "_with_first"), (_Called(), "_Called")]
)
def test_what_is_no_function_itself_is_named_with_its_place(function, named):
    handlers = Handlers()
    handlers.handler("a")(function)
    (handler,) = handlers
    assert re.fullmatch(rf"tests.runtime.handlers.test_registry:{named} \(.*test_registry.py:\d+\)", handler.where)


def test_two_handlers_for_one_subscription_are_refused_with_both_places():
    handlers = Handlers()
    handlers.handler("orders/>")(_first)
    with pytest.raises(HandlerError) as caught:
        handlers.handler("orders/>")(_second)
    assert "_second (" in caught.value.where
    assert "test_registry.py:" in caught.value.where
    assert caught.value.found == "a second handler for 'orders/>'"
    assert "_first (" in caught.value.expected


async def _none():
    pass


async def _two(message, context):
    pass


async def _keyword(*, message):
    pass


@pytest.mark.parametrize("function", [_none, _two, _keyword, max, None])
def test_a_function_that_cannot_take_just_the_message_is_refused(function):
    with pytest.raises(HandlerError, match="expected exactly one parameter, the message"):
        Handlers().handler("orders/>")(function)


@pytest.mark.parametrize("subscription", ["", "a/>/b", "a/b>", "a*b/c", "*a", "x" * 251])
def test_a_bad_subscription_is_refused(subscription):
    with pytest.raises(HandlerError, match="topic subscription"):
        Handlers().handler(subscription)(_first)


def test_a_member_warns_once_of_wildcards_of_mqtt():
    handlers = Handlers()
    for topic in ("a/#", "b/+/c", "c/#1/d+"):
        handlers.handler(topic)(_first)
    with capture_logs() as logs:
        handlers.assembled()
    assert [(each["event"], each["log_level"]) for each in logs] == [("mqtt_wildcard_found", "warning")] * 2
    assert "_first (" in logs[0]["reason"]
    assert ") takes 'a/#', and `#` and `+` are no wildcards here" in logs[0]["reason"]
    assert "takes 'b/+/c'" in logs[1]["reason"]


def test_the_decorator_without_a_topic_is_refused():
    with pytest.raises(HandlerError, match="no topic"):
        Handlers().handler()
    with pytest.raises(HandlerError, match=r"_first \(.*: no topic; expected a call of the decorator, as in @handlers"):
        Handlers().handler(_first)


@pytest.mark.parametrize("topics", [(["a", "b"],), ("a", None), (7,)])
def test_topics_that_are_no_texts_are_refused_and_not_taken_for_none(topics):
    line = r"test_registry.*: topic (\['a', 'b'\]|None|7); expected a text for each, as in @handlers"
    with pytest.raises(HandlerError, match=line):
        Handlers().handler(*topics)


async def _together(views: Batch):
    pass


@pytest.mark.parametrize(
    ("decorate", "handle", "own"),
    [
        (Handlers().handler, _first, "publishes, transacted"),
        (functools.partial(Handlers().batch_handler, max_count=9, max_wait="1s"), _together, "max_count, max_wait"),
    ],
)
def test_an_argument_that_there_is_not_is_told_with_all_that_there_are(decorate, handle, own):
    known = f"one of {own}, attempts, timeout, backoff, retriable, terminal, then"
    with pytest.raises(HandlerError, match=rf"argument publish; expected {known}$"):
        decorate("orders/>", publish=True)(handle)


@pytest.mark.parametrize("name", ["on_assigned", "on_drain", "on_revoked", "lifespan", "middleware"])
def test_a_decorator_that_was_called_is_told_with_its_place(name):
    with pytest.raises(HandlerError) as caught:
        getattr(Handlers(), name)("orders/>")
    assert re.fullmatch(
        rf"@{name} \(.*test_registry\.py:\d+\): argument 'orders/>'; expected none, as in @handlers\.{name}",
        str(caught.value),
    )


def test_what_is_no_handlers_is_not_included():
    with pytest.raises(
        HandlerError, match=r"^include \(.*test_registry\.py:\d+\): a module; expected another Handlers"
    ):
        Handlers().include(re)


async def _hook(queue, epoch):
    pass


@pytest.mark.parametrize("kind", ["on_assigned", "on_drain", "on_revoked"])
def test_a_hook_stays_what_it_was_and_is_kept_in_order(kind):
    handlers, more = Handlers(), Handlers()
    assert getattr(handlers, kind)(_hook) is _hook
    more.on_drain(_hook)
    handlers.include(more)
    assert [hook.kind.value for hook in handlers.hooks] == [kind, "on_drain"]
    assert "_hook (" in handlers.hooks[0].where


@pytest.mark.parametrize("kind", ["on_assigned", "on_drain", "on_revoked"])
def test_a_hook_that_is_not_async_is_refused(kind):
    def hook(queue, epoch):
        pass

    with pytest.raises(HandlerError, match=r"test_registry.py:[0-9]+.*: not async; expected `async def`"):
        getattr(Handlers(), kind)(hook)


@pytest.mark.parametrize("function", [_none, _first, _keyword])
def test_a_hook_that_cannot_take_queue_and_epoch_is_refused(function):
    with pytest.raises(HandlerError, match="expected two parameters, queue and epoch"):
        Handlers().on_assigned(function)


async def _swapped(epoch: int, queue: str): ...


async def _swapped_in_text(number: "Epoch", name): ...  # noqa: F821


@pytest.mark.parametrize("function", [_swapped, _swapped_in_text])
def test_a_hook_whose_parameters_are_in_the_wrong_order_is_refused(function):
    with pytest.raises(HandlerError, match="expected queue and epoch, in this order"):
        Handlers().on_assigned(function)


def test_a_hook_may_take_both_in_any_way_that_has_their_order():
    async def all_at_once(*both: int): ...

    async def in_text(queue: "QueueName", epoch: "Epoch", more: int = 0): ...  # noqa: F821

    for function in (all_at_once, in_text):
        Handlers().on_assigned(function)


def test_hooks_alone_handle_nothing():
    handlers = Handlers()
    handlers.on_assigned(_hook)
    assert len(handlers) == 0
