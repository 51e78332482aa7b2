"""Registering and loading handlers, and one clear line for each mistake."""

import functools
import re
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from lbg_runtime.model.errors import HandlerError
from lbg_runtime.model.message import Message
from lbg_runtime.runtime.handlers.batches import Batch
from lbg_runtime.runtime.handlers.registry import Handlers, load_handlers


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


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module and makes it importable; returns its name."""
    monkeypatch.syspath_prepend(tmp_path)
    names = []

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        names.append(name)
        return name

    yield write
    for name in names:
        sys.modules.pop(name, None)


GOOD = """
from lbg_runtime import Handlers
handlers = Handlers()
@handlers.handler("{topic}")
async def handle(message):
    pass
"""


def test_modules_are_joined_in_order(module):
    names = [module("shop_orders", GOOD.format(topic="orders/>")), module("shop_bills", GOOD.format(topic=">"))]
    handlers = load_handlers(names)
    assert handlers.find("orders/1").where.startswith("shop_orders:handle (")
    assert handlers.find("bills/1").where.startswith("shop_bills:handle (")


def test_an_object_that_modules_share_is_taken_once(module):
    module("shop_shared", GOOD.format(topic="orders/>"))
    name = module("shop_user", "from shop_shared import handlers\n")
    assert len(load_handlers(["shop_shared", name])) == 1


def test_an_object_that_has_two_names_in_its_module_is_taken_once(module):
    name = module("shop_twice", GOOD.format(topic="orders/>") + "app = handlers\n")
    assert len(load_handlers([name])) == 1


BODY = """
from lbg_runtime import Batch, Handlers
from pydantic import BaseModel
class Order(BaseModel):
    line: "Line"
handlers = Handlers()
@handlers.handler("orders/>")
async def handle(order: Order):
    pass
@handlers.batch_handler("more/>", max_count=2, max_wait="1s")
async def handle_more(orders: Batch[list[Order]]):
    pass
"""


def test_a_body_may_use_a_name_that_its_module_defines_later(module):
    handlers = load_handlers([module("shop_forward", BODY + "class Line(BaseModel):\n    number: int\n")])
    (fill,) = handlers.find("orders/1").parameters.positional
    assert fill(Message("orders/1", b'{"line": {"number": 7}}')).line.number == 7


def test_a_body_that_uses_a_name_that_nobody_defines_is_refused(module):
    told = r"shop_undefined:handle \(.*\): body Order: name 'Line' is not defined; expected names that are defined when"
    with pytest.raises(HandlerError, match=told):
        load_handlers([module("shop_undefined", BODY)])
    with pytest.raises(HandlerError, match=told):
        sys.modules["shop_undefined"].handlers.assembled()


def test_two_modules_that_want_one_subscription_are_refused(module):
    names = [module("shop_one", GOOD.format(topic="orders/>")), module("shop_two", GOOD.format(topic="orders/>"))]
    with pytest.raises(HandlerError, match=r"shop_two:handle .* a second handler for 'orders/>'"):
        load_handlers(names)


@pytest.mark.parametrize(
    ("number", "body"),
    [
        (1, "handlers = Handlers\n\n@handlers.handler('orders/>')\nasync def on_order(message): pass\n"),
        (2, "handlers = Handlers()\n\n@handlers.lifespan()\nasync def pool(): yield\n"),
    ],
)
def test_parentheses_that_are_missing_or_too_many_are_said_to_be(module, number, body):
    name = module(f"shop_parentheses_{number}", "from lbg_runtime import Handlers\n" + body)
    expected = "expected `handlers = Handlers()`, with parentheses, and e.g. `@handlers.lifespan`, without them"
    with pytest.raises(HandlerError, match=rf"^handlers: {name}: .*Error: .*:4\); {re.escape(expected)}$"):
        load_handlers([name])


def test_who_gives_a_batch_handler_no_limits_is_told_which(module):
    body = 'from lbg_runtime import Handlers\nhandlers = Handlers()\nhandlers.batch_handler("views/>")\n'
    with pytest.raises(HandlerError, match=r'expected @handlers\.batch_handler\("views/>", max_count=100, max_wait="'):
        load_handlers([module("shop_limits", body)])


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


def test_a_module_that_does_not_exist_is_one_line():
    with pytest.raises(HandlerError) as caught:
        load_handlers(["no_such_module_here"])
    assert str(caught.value) == (
        "handlers: no_such_module_here: ModuleNotFoundError: No module named 'no_such_module_here'; "
        f"expected a module in the current folder, {Path.cwd()} (wherever config.yaml is), or an installed one"
    )


@pytest.mark.parametrize("name", ["shop.py", "handlers/shop", "./shop", "shop:handlers"])
def test_a_file_or_an_object_in_place_of_a_module_is_told_so(name):
    with pytest.raises(HandlerError, match=r"expected the name of a module, such as `shop` or `shop\.orders`, and not"):
        load_handlers([name])


def test_a_module_without_handlers_is_told_with_its_file():
    """A module of the standard library is imported in place of a file of the same name in the current folder."""
    with pytest.raises(HandlerError, match=r"^handlers: queue: no Handlers object in the module \(.*/queue\.py\); exp"):
        load_handlers(["queue"])
    with pytest.raises(HandlerError, match=r"^handlers: sys: no Handlers object in the module \(built in\); expected"):
        load_handlers(["sys"])


def test_a_folder_in_place_of_a_module_is_told_so(tmp_path, monkeypatch):
    (tmp_path / "shop_folder").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(HandlerError, match=r"no Handlers object in the module \(a folder without __init__\.py\)"):
        load_handlers(["shop_folder"])


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


def test_a_module_that_raises_is_one_line_with_the_place(module):
    name = module("shop_broken", "x = 1\ny = undefined_name\n")
    with pytest.raises(HandlerError) as caught:
        load_handlers([name])
    assert "NameError: name 'undefined_name' is not defined (" in str(caught.value)
    assert "shop_broken.py:2)" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import sys\nsys.exit(0)\n", "SystemExit: 0 ("),
        ("class Own(BaseException): pass\nraise Own('no')\n", "Own: no ("),
        (
            "class Mute(Exception):\n    def __str__(self): return 1 / 0\nraise Mute\n",
            "Mute: (its text cannot be made: ZeroDivisionError) (",
        ),
        ("raise ValueError('two\\nlines')\n", "ValueError: two lines ("),
    ],
)
def test_a_module_that_ends_its_import_in_any_other_way_is_one_line_with_the_place(module, text, found):
    name = module("shop_ends", text)
    with pytest.raises(HandlerError) as caught:
        load_handlers([name])
    assert caught.value.found.startswith(found)
    assert "shop_ends.py:" in caught.value.found
    assert "\n" not in str(caught.value)


def test_a_module_with_a_syntax_error_is_one_line(module):
    name = module("shop_syntax", "def\n")
    with pytest.raises(HandlerError) as caught:
        load_handlers([name])
    assert "SyntaxError" in str(caught.value)
    assert "shop_syntax.py, line 1" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_mistake_in_a_handler_module_is_told_as_such(module):
    name = module("shop_bad", GOOD.format(topic="a").replace("(message)", "(message, other)"))
    with pytest.raises(HandlerError, match=r"shop_bad:handle \(.*shop_bad.py:4\): parameters \(message, other\)"):
        load_handlers([name])


def test_a_module_without_handlers_is_refused(module):
    name = module("shop_empty", "")
    with pytest.raises(HandlerError, match="no Handlers object"):
        load_handlers([name])


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
