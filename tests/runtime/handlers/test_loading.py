"""Loading modules of handlers, and one clear line for each mistake."""

import re
import sys
from pathlib import Path

import pytest

from lbg_runtime.model.errors import HandlerError
from lbg_runtime.model.message import Message
from lbg_runtime.runtime.handlers.loading import load_handlers


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
