"""Names that only type checkers know, as linters like it, may be in annotations that nobody has to read."""

import sys
from dataclasses import dataclass
from textwrap import dedent
from typing import Any

import pytest

from lbg_runtime.model.errors import HandlerError
from lbg_runtime.model.message import Message
from lbg_runtime.runtime.handlers.batches import Batch
from lbg_runtime.runtime.handlers.parameters import State, read_parameters

# From Python 3.14 on annotations are looked up when they are asked for, and need not be texts for this.
_LATE = "" if sys.version_info >= (3, 14) else "from __future__ import annotations\n"

_IMPORTS = """
from typing import TYPE_CHECKING

from lbg_runtime.runtime.handlers.registry import Handlers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from shop import Order, Pool

    from lbg_runtime import Delivery, Message, Proceed

handlers = Handlers()
"""


@dataclass
class Order:
    number: int


class Pool: ...


def _module(text: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "shop.handlers"}
    exec(_LATE + _IMPORTS + dedent(text), names)  # noqa: S102 - so it is a module of its own, with other imports
    return names


def test_hooks_lifespans_middleware_and_the_message_need_no_names_at_run_time() -> None:
    names = _module("""
        @handlers.on_assigned
        async def load(queue: Order, epoch: int) -> Pool: ...


        @handlers.lifespan
        async def pool() -> AsyncIterator[Pool]:
            yield 3


        @handlers.middleware
        async def audit(message: Message, proceed: Proceed) -> None: ...


        @handlers.handler("orders/>")
        async def on_order(message: Message) -> Order: ...
    """)
    (handler,) = names["handlers"]
    assert handler.parameters.is_plain


@pytest.mark.parametrize(
    ("parameter", "found"),
    [
        ("it: Delivery", "annotation 'Delivery': NameError: name 'Delivery' is not defined"),
        ("order: Order | None", "annotation 'Order | None': NameError: name 'Order' is not defined"),
    ],
)
def test_what_a_parameter_is_filled_with_has_to_be_known_at_run_time(parameter: str, found: str) -> None:
    with pytest.raises(HandlerError) as refusal:
        _module(f"""
            @handlers.handler("orders/>")
            async def on_order(message: Message, {parameter}) -> None: ...
        """)
    assert f"{found}; expected a name that is imported at run time" in str(refusal.value)


def test_middleware_with_its_parameters_the_wrong_way_round_is_found_by_their_names() -> None:
    with pytest.raises(HandlerError, match="in this order"):
        _module("""
            @handlers.middleware
            async def audit(proceed: Proceed, message: Message) -> None: ...
        """)


@pytest.mark.parametrize(
    ("parameter", "payload", "value"),
    [
        ("orders: list['Order']", b'[{"number": 1}]', "[Order(1)]"),
        ("orders: dict[str, 'Order | None']", b'{"a": {"number": 1}, "b": null}', "{'a': Order(1), 'b': None}"),
        ("kind: Literal['Order']", b'"Order"', "'Order'"),
        ("orders: 'list[Order]'", b'[{"number": 1}]', "[Order(1)]"),
    ],
)
def test_a_name_in_brackets_may_be_a_text(parameter: str, payload: bytes, value: str) -> None:
    text = f"""
        from dataclasses import dataclass
        from typing import Literal

        from lbg_runtime.runtime.handlers.registry import Handlers

        handlers = Handlers()


        @dataclass
        class Order:
            number: int


        @handlers.handler("orders/>")
        async def on_order({parameter}) -> None: ...
    """
    names: dict[str, Any] = {"__name__": "shop.quoted"}
    exec(dedent(text), names)  # noqa: S102 - so the names are those of another module
    names["handlers"].check_bodies()
    (handler,) = names["handlers"]
    (given,), _ = handler.parameters.fill(Message("orders/new", payload))
    assert given == eval(value, names)  # noqa: S307 - of the same module


def test_the_types_in_batch_and_state_may_be_texts() -> None:
    async def on_batch(batch: "Batch['Order']", pool: "State['Pool']") -> None: ...

    on_batch.__annotations__ = {"batch": Batch["Order"], "pool": State["Pool"]}
    parameters = read_parameters(on_batch, "here")
    assert (parameters.body, parameters.states) == (Order, (Pool,))
