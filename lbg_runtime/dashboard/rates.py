"""What members tell when they are asked: messages per second, keys parked, and queues that stand still."""

from dataclasses import dataclass
from typing import Any

import httpx
import orjson

from lbg_runtime.core.group.control_messages import ParkingWait
from lbg_runtime.model.ids import MemberId
from lbg_runtime.status.picture import HandledPicture, Standstill

FRESH_MS = 4_000
"""A member that has reported nothing for longer handles nothing, as far as is known."""


@dataclass(slots=True)
class _Told:
    at_ms: int
    picture: HandledPicture
    rates: dict[int, float] | None
    """None for the first answer of a life."""


class HandlingRates:
    """Fed with each member's answers in their order; called by one task."""

    def __init__(self) -> None:
        self._told: dict[MemberId, _Told] = {}

    def take(self, picture: HandledPicture, now_ms: int) -> None:
        """Take a member's answer. The first one of a life gives no rate, as nobody knows since when it counts."""
        last = self._told.get(picture.member)
        if last is not None and now_ms <= last.at_ms:
            return
        rates: dict[int, float] | None = None
        if last is not None and last.picture.incarnation == picture.incarnation:
            seconds, before = (now_ms - last.at_ms) / 1_000, last.picture.handled
            rates = {
                index: (count - before.get(index, 0)) / seconds
                for index, count in picture.handled.items()
                if count > before.get(index, 0)
            }
        self._told[picture.member] = _Told(now_ms, picture, rates)

    def by_queue(self, now_ms: int) -> dict[int, float] | None:
        """Messages per second now, by index of the queue; a queue with none is left out.

        None if no member's rates can be told: of its first answer alone nobody can tell them, and 0 would say that it
        handles nothing.
        """
        self._told = {name: told for name, told in self._told.items() if now_ms - told.at_ms < FRESH_MS}
        known = [told.rates for told in self._told.values() if told.rates is not None]
        found: dict[int, float] = {}
        for rates in known:
            for index, rate in rates.items():
                found[index] = found.get(index, 0.0) + rate
        return found if known else None

    @property
    def keys_parked(self) -> int | None:
        """Keys that members have parked, as of the last `by_queue`; None if no member has told lately."""
        counts = [told.picture.keys_parked for told in self._told.values() if told.picture.keys_parked is not None]
        return sum(counts) if counts else None

    @property
    def standing_still(self) -> dict[tuple[MemberId, int], tuple[str | None, int | None]]:
        """The queues that stand still, by the member that says so and their index, as of the last `by_queue`.

        With each why it waits for its parking queue, and since when; None and None if it has stopped.
        """
        found: dict[tuple[MemberId, int], tuple[str | None, int | None]] = {}
        for name, told in self._told.items():
            for index, still in told.picture.standing_still.items():
                wait = still.parking_wait
                found[name, index] = (None, None) if wait is None else (wait.reason, told.at_ms - wait.waited_ms)
        return found


async def read_handled(client: httpx.AsyncClient) -> HandledPicture | None:
    """What the member behind this client's address has handled; None if it does not tell.

    The answer is as `status.objects.handled_as_object` makes it.
    """
    try:
        response = await client.get("/v1/handled")
        if response.status_code != httpx.codes.OK:
            return None
        told = orjson.loads(response.content)
        counts = {int(index): int(count) for index, count in told["handled"].items()}
        # A member of an older version tells neither this nor what stands still.
        parked = told.get("keys_parked")
        keys_parked = None if parked is None else int(parked)
        still = {int(index): _read_still(each) for index, each in told.get("standing_still", {}).items()}
        return HandledPicture(MemberId(str(told["member"])), int(told["incarnation"]), counts, keys_parked, still)
    except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError):
        # It may be away, or another program may have its port: then there is just no rate.
        return None


def _read_still(told: dict[str, Any]) -> Standstill:
    wait = told["parking_wait"]
    return Standstill(
        bool(told["stopped"]), None if wait is None else ParkingWait(int(wait["waited_ms"]), str(wait["reason"]))
    )
