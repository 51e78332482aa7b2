"""What members tell when they are asked: messages per second, keys parked, and queues that stand still."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

import httpx
import orjson

from lbg_runtime.core.group.control_messages import (
    ControlMessage,
    GroupAnswer,
    Header,
    Inquiry,
    MemberFacts,
    ParkingWait,
    ParkingWaits,
    QuestionId,
    StoppedQueues,
)
from lbg_runtime.dashboard.board import MAX_MEMBERS
from lbg_runtime.dashboard.feed import Figures
from lbg_runtime.model.ids import MemberId, QueueName
from lbg_runtime.status.picture import HandledPicture, Standstill, standstill_of

FRESH_MS = 4_000
"""A member that has reported nothing for longer handles nothing, as far as is known."""
FRESH_IN_GROUP_MS = 12_000
"""The same for what members say on the control topic, where they are asked every five seconds."""

MAX_ANSWER_BYTES = 16_000_000
"""Of a member; whoever tells more is none."""
MAX_COUNT = 2**53 - 1
"""The page counts no further, and the sum of what a thousand members tell is still a number of JSON."""


@dataclass(slots=True)
class _Told:
    at_ms: int
    fresh_ms: int
    picture: HandledPicture
    rates: dict[int, float] | None
    """None for the first answer of a life."""


class HandlingRates:
    """Fed with each member's answers in their order; called by one task."""

    def __init__(self) -> None:
        self._told: dict[MemberId, _Told] = {}

    def take(self, picture: HandledPicture, now_ms: int, fresh_ms: int = FRESH_MS) -> None:
        """Take a member's answer. The first one of a life gives no rate, as nobody knows since when it counts. What a
        member tells often counts, and not what it tells seldom beside that."""
        last = self._told.get(picture.member)
        if last is not None and (now_ms <= last.at_ms or (last.fresh_ms < fresh_ms and _is_fresh(last, now_ms))):
            return
        rates: dict[int, float] | None = None
        if last is not None and last.picture.incarnation == picture.incarnation:
            rates = _rates(last.picture.handled, picture.handled, (now_ms - last.at_ms) / 1_000)
        self._told[picture.member] = _Told(now_ms, fresh_ms, picture, rates)

    def knows(self, member: MemberId, now_ms: int) -> bool:
        """Whether the member has answered lately where it is asked often."""
        told = self._told.get(member)
        return told is not None and told.fresh_ms == FRESH_MS and _is_fresh(told, now_ms)

    def figures(self, now_ms: int) -> Figures:
        """What all members tell now."""
        self._told = {name: told for name, told in self._told.items() if _is_fresh(told, now_ms)}
        counts = [told.picture.keys_parked for told in self._told.values() if told.picture.keys_parked is not None]
        still: dict[tuple[MemberId, int], tuple[str | None, int | None]] = {}
        for name, told in self._told.items():
            for index, each in told.picture.standing_still.items():
                wait = each.parking_wait
                still[name, index] = (None, None) if wait is None else (wait.reason, told.at_ms - wait.waited_ms)
        return Figures(
            rates=self._by_queue(),
            keys_parked=sum(counts) if counts else None,
            is_parked_unknown=any(reason is not None for reason, _ in still.values()),
            standing_still=still,
        )

    def _by_queue(self) -> dict[int, float] | None:
        # None rather than 0, which would say that a member handles nothing of whose first answer alone nobody can tell.
        known = [told.rates for told in self._told.values() if told.rates is not None]
        found: dict[int, float] = {}
        for rates in known:
            for index, rate in rates.items():
                found[index] = found.get(index, 0.0) + rate
        return found if known else None


def _rates(
    before: Mapping[int, int] | None, counts: Mapping[int, int] | None, seconds: float
) -> dict[int, float] | None:
    if before is None or counts is None:
        return None
    grown = ((index, count - before.get(index, 0)) for index, count in counts.items())
    return {index: growth / seconds for index, growth in grown if growth > 0}


def _is_fresh(told: _Told, now_ms: int) -> bool:
    return now_ms - told.at_ms < told.fresh_ms


class FiguresHeard:
    """Puts together what each member says on the control topic before its answer to one question."""

    def __init__(self) -> None:
        self._parts: dict[MemberId, _Parts] = {}

    def hear(self, message: ControlMessage | Inquiry, queues: Sequence[QueueName]) -> HandledPicture | None:
        """Take what a member said; return how it stands if that was its last word to the question. `queues` by index.

        The caller passes on what known members say: something is kept of each.
        """
        header = message.header
        if not isinstance(message, MemberFacts | ParkingWaits | StoppedQueues | GroupAnswer):
            return None
        if len(self._parts) > MAX_MEMBERS:
            # Of members that left before they had said all, or whose words before a `KeyAnswer` were heard.
            self._parts.clear()
        parts = self._parts.get(header.member)
        if parts is None or parts.question != message.question:
            parts = self._parts[header.member] = _Parts(message.question)
        match message:
            case MemberFacts():
                parts.facts = message
            case ParkingWaits():
                parts.waits = message.waits
            case StoppedQueues():
                parts.stopped = frozenset(message.queues)
            case GroupAnswer():
                del self._parts[header.member]
                return parts.picture(header, queues)
            case _:
                assert_never(message)
        return None


@dataclass(slots=True)
class _Parts:
    question: QuestionId
    facts: MemberFacts | None = None
    """None from a member older than 0.2.0."""
    waits: Mapping[QueueName, ParkingWait] = field(default_factory=dict)
    stopped: frozenset[QueueName] = frozenset()

    def picture(self, header: Header, queues: Sequence[QueueName]) -> HandledPicture:
        found = {
            index: standstill_of(self.waits.get(queue), is_stopped=queue in self.stopped)
            for index, queue in enumerate(queues)
            if self.waits or self.stopped
        }
        still = {index: each for index, each in found.items() if each is not None}
        handled, keys_parked = None, None
        if self.facts is not None:
            handled, keys_parked = self.facts.handled, self.facts.keys_parked
        return HandledPicture(header.member, header.life.incarnation, handled, keys_parked, still)


async def read_handled(client: httpx.AsyncClient) -> HandledPicture | None:
    """What the member behind this client's address has handled; None if it does not tell.

    The answer is as `status.objects.handled_as_object` makes it.
    """
    try:
        body = bytearray()
        async with client.stream("GET", "/v1/handled") as response:
            if response.status_code != httpx.codes.OK:
                return None
            async for part in response.aiter_bytes():
                body += part
                if len(body) > MAX_ANSWER_BYTES:
                    return None
        told = orjson.loads(body)
        counts = {int(index): _count(count) for index, count in told["handled"].items()}
        # A member of an older version tells neither this nor what stands still.
        parked = told.get("keys_parked")
        keys_parked = None if parked is None else _count(parked)
        still = {int(index): _read_still(each) for index, each in told.get("standing_still", {}).items()}
        return HandledPicture(MemberId(str(told["member"])), int(told["incarnation"]), counts, keys_parked, still)
    except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError):
        # The member may be away, or another program may have its port: then there is no rate.
        return None


def _read_still(told: dict[str, Any]) -> Standstill:
    wait = told["parking_wait"]
    return Standstill(
        bool(told["stopped"]), None if wait is None else ParkingWait(_count(wait["waited_ms"]), str(wait["reason"]))
    )


def _count(told: object) -> int:
    if type(told) is not int or not 0 <= told <= MAX_COUNT:
        raise ValueError("no count")
    return told
