"""What is refused as middleware, and what is registered or included too late to be around anything."""

import sys

import pytest

from lbg_runtime.model.errors import HandlerError
from lbg_runtime.model.message import Message
from lbg_runtime.runtime.handlers.loading import load_handlers
from lbg_runtime.runtime.handlers.middleware import Proceed
from lbg_runtime.runtime.handlers.registry import Handlers


def _plain(message, proceed): ...


async def _one(message): ...


async def _named(*, message, proceed): ...


async def _unknown(message, proceed, what): ...


async def _with_body(message, proceed, body: bytes): ...


async def _swapped(proceed: Proceed, message: Message): ...


async def _swapped_in_text(proceed, message: "Message"): ...


@pytest.mark.parametrize("function", [_plain, _one, _named, _unknown, _with_body, _swapped, _swapped_in_text])
def test_what_is_no_middleware_is_refused_with_its_place(function):
    with pytest.raises(HandlerError) as caught:
        Handlers().middleware(function)
    assert f"{function.__name__} (" in caught.value.where


def test_what_is_registered_after_an_inclusion_is_refused_as_it_would_be_missing():
    app, router = Handlers(), Handlers()
    app.include(router)
    for register in (router.middleware, router.handler("orders/>"), router.on_drain, router.lifespan):
        with pytest.raises(HandlerError, match="registered after its Handlers were included"):
            register(_unknown_kind(register))


def test_an_inclusion_in_what_is_included_is_refused_as_it_would_be_missing():
    app, router, late = Handlers(), Handlers(), Handlers()
    late.on_drain(_unknown_kind(late.on_drain))
    app.include(router)
    with pytest.raises(
        HandlerError, match=r"^include \(.*test_middleware_registration.py:\d+\): registered after its Handlers were"
    ):
        router.include(late)
    late.on_revoked(_unknown_kind(late.on_drain))


def test_nothing_includes_itself():
    app, router = Handlers(), Handlers()
    with pytest.raises(HandlerError, match=r"^include \(.*test_middleware_registration.py:\d+\): a Handlers in itself"):
        app.include(app)
    app.include(router)
    with pytest.raises(HandlerError, match="registered after"):
        router.include(app)


def _unknown_kind(register):
    async def middleware(message, proceed): ...

    async def handler(message): ...

    async def hook(queue, epoch): ...

    async def lifespan():
        yield

    return {"middleware": middleware, "on_drain": hook, "lifespan": lifespan}.get(register.__name__, handler)


def test_a_module_that_includes_a_router_of_another_one_is_loaded_once(tmp_path, monkeypatch):
    (tmp_path / "lbg_routers_bills.py").write_text(
        "from lbg_runtime import Handlers\n"
        "router = Handlers()\n"
        "@router.handler('bills/>')\n"
        "async def bills(message): ...\n"
    )
    (tmp_path / "lbg_routers_app.py").write_text(
        "from lbg_runtime import Handlers\n"
        "from lbg_routers_bills import router\n"
        "handlers = Handlers()\n"
        "handlers.include(router)\n"
        "@handlers.middleware\n"
        "async def audit(message, proceed): await proceed(message)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        loaded = load_handlers(["lbg_routers_app", "lbg_routers_bills"])
        (bills,) = loaded
        assert [each.function.__name__ for each in loaded.middleware_of(bills)] == ["audit"]
    finally:
        for name in ("lbg_routers_app", "lbg_routers_bills"):
            sys.modules.pop(name, None)
