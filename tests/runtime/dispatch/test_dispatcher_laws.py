"""Whatever handlers do and flows take back: L2 (no overlap in a key), L3 (prefix), L7, L8 (one end each)."""

import asyncio
from collections import Counter, defaultdict
from enum import Enum

from hypothesis import given, settings
from hypothesis import strategies as st

from lbg_runtime.model.errors import PublishFailed
from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.testing.virtual_time import VirtualTimeLoop

QUEUE = QueueName("orders/0")
KEYS = ("a", "b", "c")


class Act(Enum):
    """What a handler does in one attempt."""

    RETURN = "return"
    WAIT = "wait"
    RAISE = "raise"
    RAISE_LATER = "raise_later"
    HANG = "hang"
    SWALLOW = "swallow"
    CANCEL_ITSELF = "cancel_itself"


@st.composite
def stories(draw: st.DrawFn) -> list[tuple[str, object]]:
    """Steps: a delivery, a pause, or the recall of the current handle, after which a new one begins."""
    step = st.one_of(
        st.tuples(st.just("deliver"), st.sampled_from(KEYS)),
        st.tuples(st.just("pause"), st.sampled_from((0.0, 0.3, 1.0, 7.0))),
        st.tuples(st.just("recall"), st.booleans()),
    )
    return draw(st.lists(step, max_size=30))


class _ErrorQueue:
    """Confirms, refuses or takes long, as the script says; `confirmed` is what lies there."""

    def __init__(self, script):
        self._script = script
        self.confirmed: list[int] = []

    async def take(self, handling, _report) -> None:
        act = next(self._script, Act.RETURN)
        if act in (Act.WAIT, Act.RAISE_LATER, Act.HANG, Act.SWALLOW):
            await asyncio.sleep(0.5)
        if act in (Act.RAISE, Act.RAISE_LATER):
            raise PublishFailed("lbg-errors/orders", "now")
        self.confirmed.append(handling.delivery.delivery_id)


@settings(max_examples=250, deadline=None)
@given(
    story=stories(),
    acts=st.lists(st.sampled_from(Act), min_size=1, max_size=40),
    runners=st.integers(1, 3),
    failure=st.sampled_from(({}, {"attempts": 2, "then": "error_queue"}, {"attempts": 2, "then": "stop"})),
)
def test_every_delivery_ends_once_and_keys_keep_their_order(rig, delivery, story, acts, runners, failure):
    async def main() -> None:
        await _play(rig, delivery, story, acts, runners, failure)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())


async def _play(rig, delivery, story, acts, runners, failure) -> None:
    script = iter(acts)
    returned: list[int] = []
    error_queue = _ErrorQueue(script)
    running: Counter[str] = Counter()
    swallowed = 0

    async def handle(message):
        nonlocal swallowed
        # After the script everything succeeds, so that the story ends.
        act = next(script, Act.RETURN)
        running[message.key] += 1
        assert running[message.key] == 1, "two handlings of a key overlap (L2)"
        try:
            match act:
                case Act.RETURN:
                    pass
                case Act.WAIT:
                    await asyncio.sleep(0.5)
                case Act.RAISE:
                    raise ValueError("now")
                case Act.RAISE_LATER:
                    await asyncio.sleep(0.5)
                    raise ValueError("later")
                case Act.HANG:
                    await asyncio.sleep(1_000_000)
                case Act.SWALLOW:
                    try:
                        await asyncio.sleep(1_000_000)
                    except asyncio.CancelledError:
                        swallowed += 1
                case Act.CANCEL_ITSELF:
                    raise asyncio.CancelledError
        finally:
            running[message.key] -= 1
        returned.append(int(message.payload))

    timing = {"timeout": "5s", "backoff": {"maximum": "1s"}}
    made = rig(handle, error_queue=error_queue, dispatch={"runners": runners}, failure={**timing, **failure})
    dispatched: dict[tuple[int, str], list[int]] = defaultdict(list)
    epoch, number, recalled = 1, 0, set()
    async with made.running():
        for step, detail in story:
            if step == "deliver":
                number += 1
                made.dispatcher.dispatch(delivery(number, detail, epoch=epoch))
                dispatched[epoch, detail].append(number)
            elif step == "pause":
                await asyncio.sleep(detail)
            else:
                recalled.add(epoch)
                made.dispatcher.return_unstarted(QUEUE, Epoch(epoch))
                if detail:
                    made.dispatcher.cancel_handling(QUEUE, Epoch(epoch))
                epoch += 1
        if failure.get("then") == "stop":
            await asyncio.sleep(1_000)
        else:
            await made.until_ended(number)
    ended = [end.delivery.delivery_id for end in made.ends]
    assert sorted(ended) == list(range(1, number + 1)), "every delivery ends exactly once (L8)"
    outcomes = made.outcomes()
    assert set(outcomes.values()) <= {Outcome.ACCEPTED, None}
    for (of_epoch, _), numbers in dispatched.items():
        accepted = [each for each in ended if each in numbers and outcomes[each] is Outcome.ACCEPTED]
        assert accepted == numbers[: len(accepted)], "what is accepted of a key is a prefix, in order (L3)"
        is_complete = of_epoch in recalled or len(accepted) == len(numbers)
        assert is_complete or made.dispatcher.counts.stops, "nothing is given up unasked"
        assert set(accepted) <= {*returned, *error_queue.confirmed}, "settled is what was handled, or is elsewhere"
