"""What is remembered of topics."""

from lbg_runtime.runtime.handlers import routes as routes_module
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.handlers.routes import Routes
from lbg_runtime.runtime.runners.attempts import AttemptWatches


def test_topics_that_are_all_different_take_a_bounded_room_and_keep_their_handlers(settings, monkeypatch):
    monkeypatch.setattr(routes_module, "MAX_ROUTES_REMEMBERED", 3)
    handlers = Handlers()

    @handlers.handler("orders/*")
    async def handle(message): ...

    made = settings()
    routes = Routes(handlers, made.group.shape(), made.failure, AttemptWatches(lambda _: None))
    known = routes.known
    for number in range(10):
        route = routes.look_up(f"h/1/orders/{number}")
        assert (route.topic, route.shard, route.function) == (f"orders/{number}", 1, handle)
        assert known[f"h/1/orders/{number}"] is route
        assert len(known) <= 3
    assert routes.known is known, "others hold on to it"
