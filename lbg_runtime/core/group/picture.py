"""What a listener to a group's control topic has learned: who is there, who owns what, and where members disagree.

The listener is not a member, so it has no view of its own: everything here is what members said while it listened.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lbg_runtime.core.group.control_messages import (
    ControlMessage,
    GroupAnswer,
    Heartbeat,
    Inquiry,
    Leave,
    Life,
    MemberFacts,
    ParkingWait,
    ParkingWaits,
    SeenMember,
    StoppedQueues,
)
from lbg_runtime.core.restripe.striping import Striping
from lbg_runtime.model.ids import MemberId, QueueName


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A setting that must be the same on all members, and is not."""

    name: str
    values: Mapping[str | None, tuple[MemberId, ...]]
    """The members that have each value; None: the member does not know the setting."""


class GroupPicture:
    """A picture of the group from the messages heard, fed in any order. Reading it changes nothing."""

    def __init__(self) -> None:
        self._beats: dict[MemberId, Heartbeat] = {}
        self._lives: dict[MemberId, set[Life]] = {}
        self._views: dict[MemberId, GroupAnswer] = {}
        self._waits: dict[MemberId, ParkingWaits] = {}
        self._stopped: dict[MemberId, StoppedQueues] = {}
        self._facts: dict[MemberId, MemberFacts] = {}

    def hear(self, message: ControlMessage | Inquiry) -> None:
        """Take in a message of the group."""
        member = message.header.member
        known = self._beats.get(member)
        match message:
            case Heartbeat(header):
                self._lives.setdefault(member, set()).add(header.life)
                if known is None or (header.life, header.sequence) > (known.header.life, known.header.sequence):
                    self._beats[member] = message
            case GroupAnswer():
                self._views[member] = message
                if member in self._waits and self._waits[member].question != message.question:
                    del self._waits[member]
                if member in self._stopped and self._stopped[member].question != message.question:
                    del self._stopped[member]
            case ParkingWaits():
                self._waits[member] = message
            case StoppedQueues():
                self._stopped[member] = message
            case MemberFacts():
                self._facts[member] = message
            case Leave(header) if known is not None and header.life == known.header.life:
                del self._beats[member]
                self._views.pop(member, None)
                self._waits.pop(member, None)
                self._stopped.pop(member, None)
                self._facts.pop(member, None)
                # Its older lives go too. If one of them is a second process, it speaks again; and a listener that
                # watches for months must not keep the name of every member there ever was.
                del self._lives[member]
            case Leave(header) if known is not None:
                self._lives[member].discard(header.life)
            case _:
                pass

    @property
    def members(self) -> Mapping[MemberId, Heartbeat]:
        """The newest heartbeat of every member heard, in order of ids."""
        return dict(sorted(self._beats.items()))

    @property
    def owners(self) -> Mapping[QueueName, tuple[MemberId, ...]]:
        """The members of each queue that say that the broker feeds it to them; two if it moved while we listened."""
        found: dict[QueueName, tuple[MemberId, ...]] = {}
        for member, beat in self.members.items():
            for queue, flow in beat.flows.items():
                if flow.is_owner:
                    found[queue] = (*found.get(queue, ()), member)
        return found

    @property
    def striping(self) -> Striping | None:
        """What is said by the member that knows most about a re-striping; None if nobody was heard."""
        said = [beat.striping.striping for beat in self._beats.values()]
        return max(said, key=how_much_is_known, default=None)

    @property
    def waits(self) -> Mapping[QueueName, tuple[MemberId, ParkingWait]]:
        """The queues whose owner handles nothing of them, as it does not know what is parked; with that owner."""
        return {queue: (one, wait) for one, told in sorted(self._waits.items()) for queue, wait in told.waits.items()}

    @property
    def stopped(self) -> Mapping[QueueName, MemberId]:
        """The queues whose owner starts nothing more of them, as a message has failed for good; with that owner."""
        return {queue: member for member, told in sorted(self._stopped.items()) for queue in told.queues}

    @property
    def versions(self) -> Mapping[MemberId, str]:
        """Which code the members heard run, as far as they have told it in their present lives."""
        told = {member: self._facts.get(member) for member in self.members}
        return {
            member: one.version
            for member, one in told.items()
            if one is not None and one.header.life == self._beats[member].header.life
        }

    @property
    def suspects(self) -> Mapping[MemberId, tuple[MemberId, ...]]:
        """Members that others report as silent, each with the members that report it."""
        return self._named_by(lambda seen: seen.is_suspect)

    @property
    def unheard(self) -> Mapping[MemberId, tuple[MemberId, ...]]:
        """Members that others see alive but that we have not heard, each with the members that see it."""
        return dict(sorted(self._named_by(lambda seen: seen.member not in self._beats).items()))

    @property
    def twice(self) -> tuple[MemberId, ...]:
        """Member ids that more than one process claims."""
        return tuple(sorted(member for member, lives in self._lives.items() if len(lives) > 1))

    @property
    def disagreements(self) -> tuple[Disagreement, ...]:
        """The settings that differ between members, by name."""
        told = {member: dict(beat.settings) for member, beat in self.members.items()}
        striping = self.striping
        if striping is not None and not striping.generation:
            # Otherwise a re-striping explains the difference: a member that has just started may not have heard of it.
            for member, settings in told.items():
                settings["group.queue_count"] = str(self._beats[member].striping.striping.queue_count)
        names = sorted({name for settings in told.values() for name in settings})
        found = []
        for name in names:
            values: dict[str | None, tuple[MemberId, ...]] = {}
            for member, settings in told.items():
                value = settings.get(name)
                values[value] = (*values.get(value, ()), member)
            if len(values) > 1:
                found.append(Disagreement(name, values))
        return tuple(found)

    def _named_by(self, is_meant: Callable[[SeenMember], bool]) -> dict[MemberId, tuple[MemberId, ...]]:
        """The members that are meant in what others see, each with those others."""
        found: dict[MemberId, tuple[MemberId, ...]] = {}
        for member, answer in sorted(self._views.items()):
            for seen in answer.members:
                if is_meant(seen):
                    found[seen.member] = (*found.get(seen.member, ()), member)
        return found


def how_much_is_known(striping: Striping) -> tuple[int, bool, int, int]:
    """Sorts by knowledge: of two members, the one for which this is greater knows more."""
    # A member that knows that the re-striping is over has forgotten the rest.
    return striping.generation, striping.target is None, len(striping.left), len(striping.finished)
