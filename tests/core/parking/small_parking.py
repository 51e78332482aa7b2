"""A queue, its parking queue and their owners, small enough that every history of them can be tried.

The ledger is the real one. Around it is what it may rely on: queues that are in order, one connection on which an
owner's settlements and publications arrive in their order, lanes that handle a key in order, and one owner at a time.
Settlements wait for a timer or a flush before they leave. Steps check what docs/failing.md promises.
"""

from dataclasses import replace

from lbg_runtime.core.parking.ledger import Verdict
from lbg_runtime.core.parking.orders import PublishDrop
from lbg_runtime.core.parking.records import DropAsked, OwnerFence, ParkedMessage, UnparkAsked
from tests.core.histories import Breach, Step, perform
from tests.core.parking.small_parked_queue import ParkedWorld
from tests.core.parking.small_parking_parts import (
    Item,
    Settled,
    Spooled,
    name_of,
)


class SmallParking(ParkedWorld):
    """A state. `steps` says what can happen in it, `take` makes it happen."""

    # -- what can happen

    def regular_steps(self) -> list[Step]:
        """What happens sooner or later, in this order if all is well."""
        owner, found = self.owner, list[Step]()
        if owner.line and "both" not in owner.lost:
            found.append(("arrive",))
        is_fed = not owner.lost & {"both", "parking", "fed again"}
        if is_fed and any(each > owner.read_to for each in self.parking):
            found.append(("read",))
        if not owner.is_recalled:
            if (
                owner.is_open
                and not owner.is_leaving
                and not owner.lost & {"both", "queue", "fed again"}
                and self._next_message()
            ):
                found.append(("deliver",))
            found += [("turn", key) for key in owner.lanes if self._has_turn(key)]
        found += [("end", key) for key in sorted(owner.running)]
        if owner.lost and not owner.is_recalled:
            found.append(("notice",))
        if self._may_go():
            found.append(("go",))
        if owner.held or owner.held_parked:
            found.append(("timer",))
        if self.late:
            found.append(("be late",))
        if self.unpublished:
            found.append(("publish",))
        return found

    def steps(self) -> list[Step]:
        """Everything that can happen."""
        found = self.regular_steps()
        # But messages come at any moment, also while others of their key are parked or replayed.
        prompt = [step for step in found if step[0] in self.setup.at_once][:1]
        found = [*prompt, *(step for step in found if step[0] == "publish")] if prompt else found
        if not found and not self.is_at_rest:
            found = [("at last",)]
        owner = self.owner
        for name in dict.fromkeys(self.may_happen):
            match name:
                case "die" | "cut":
                    found.append((name,))
                case "lose the queue" | "lose the parking queue" | "lose for a moment" | "leave":
                    if not owner.lost and not owner.is_leaving:
                        found.append((name,))
                case "stay" if owner.is_leaving and not owner.is_recalled:
                    found.append((name,))
                case "unpark" | "unpark unmended" | "drop":
                    found += [(name, key) for key in owner.ledger.contents()]
                case "doubt":
                    found += [(name, key) for key, lane in owner.lanes.items() if lane and _is_awaited(lane[0])]
                case "refuse" if owner.line and isinstance(owner.line[0], ParkedMessage):
                    found.append((name,))
                case "swallow" if owner.line and isinstance(owner.line[0], ParkedMessage | OwnerFence):
                    found.append((name,))
                case "fence again" if not owner.ledger.is_open:
                    found.append((name,))
        return found

    def _may_go(self) -> bool:
        owner = self.owner
        if "both" in owner.lost:
            # Others have the queue as soon as the broker sees it.
            return True
        is_moving = any(item.copy is not None for lane in owner.lanes.values() for item in lane)
        return not owner.running and (owner.is_recalled or (owner.is_leaving and not owner.lost and not is_moving))

    @property
    def is_at_rest(self) -> bool:
        """Whether all is handled or dropped, and settled."""
        owner = self.owner
        is_silent = not (owner.line or owner.held or owner.held_parked or self.late or owner.lost or owner.is_leaving)
        [*rest] = self.parking.values()
        return is_silent and not self.spool and not self.unpublished and rest == [OwnerFence(owner.ledger.owner)]

    # -- what happens

    def take(self, step: Step) -> None:
        """Let a step happen; raises `Breach`, or what the ledger raises."""
        perform(self, step)
        self._check()

    def _publish(self) -> None:
        self.spool = (*self.spool, Spooled(self.unpublished[0], False))
        self.unpublished = self.unpublished[1:]

    def _read(self) -> None:
        delivery_id = next(each for each in self.parking if each > self.owner.read_to)
        self.owner.read_to = delivery_id
        self._obey(self.owner.ledger.take(delivery_id, self.parking[delivery_id]))

    def _deliver(self) -> None:
        found = self._next_message()
        assert found is not None
        self.owner.shown |= {found.name}
        self.spool = tuple(Spooled(each.name, True) if each is found else each for each in self.spool)
        self._queue_up(Item(*found))

    def _turn(self, key: str) -> None:
        owner, head = self.owner, self.owner.lanes[key][0]
        if head.parked_id is not None:
            self._start(head)
            return
        verdict = self._verdict(head)
        if verdict is Verdict.HANDLE:
            self._start(head)
            return
        replays = self._replays_of(key)
        if replays and not head.is_awaited:
            owner.lanes[key] = (replays[0], *(item for item in owner.lanes[key] if item is not replays[0]))
            self._start(replays[0])
        elif verdict is Verdict.DROP or head.has_come:
            self._settle(head)
        else:
            self._park(key)

    def _end(self, key: str) -> None:
        owner, head = self.owner, self.owner.lanes[key][0]
        owner.running -= {key}
        is_good = head.name not in self.setup.fails or key in self.mended
        if is_good:
            self.handled |= {head.name}
            owner.handled |= {head.name}
        if head.parked_id is not None:
            owner.lanes[key] = owner.lanes[key][1:]
            if is_good:
                orders = owner.ledger.replayed(key)
                self._obey([order for order in orders if not isinstance(order, PublishDrop)])
                # Flushed before anything else is sent.
                owner.line, owner.held_parked = (*owner.line, *owner.held_parked), ()
                self._obey([order for order in orders if isinstance(order, PublishDrop)])
            else:
                self.failed |= {key}
                self._obey(owner.ledger.replay_failed(key))
        elif is_good:
            self._settle(head, is_handled=True)
        elif owner.is_recalled:
            owner.lanes[key] = owner.lanes[key][1:]
        else:
            self._renew_head(replace(head, has_failed=True))
            self._park(key)

    def _notice(self) -> None:
        """Nothing more is started, and what has not started goes back."""
        owner = self.owner
        owner.is_recalled = True
        owner.ledger.pause()
        for key, lane in owner.lanes.items():
            for item in lane:
                if item.has_come and "queue" not in owner.lost:
                    owner.held = (*owner.held, Settled(item.name))
            owner.lanes[key] = lane[:1] if key in owner.running else ()

    def _go(self) -> None:
        owner = self.owner
        if "both" in owner.lost:
            self.late += tuple(each for each in owner.line if not isinstance(each, Settled))
            # Without them, what was sent behind them may count if it comes before the next fence.
            self.is_uneven |= any(isinstance(each, Settled) and each.is_handled for each in owner.line)
        else:
            self._timer()
            while owner.line:
                self._arrive()
            if owner.lost <= {"fed again"}:
                stays = {each.name for each in self.spool}
                self.done |= {each for each in owner.handled if each[0] != "p"} - stays
        self.owner = self._new_owner()

    def _be_late(self) -> None:
        entry, self.late = self.late[0], self.late[1:]
        self._put(entry)

    def _at_last(self) -> None:
        """What has not come is sent again; or an operator has all mended and replayed."""
        owner = self.owner
        if not owner.ledger.is_open:
            self._fence_again()
        elif doubtful := [key for key, lane in owner.lanes.items() if lane and _is_awaited(lane[0])]:
            for key in doubtful:
                self._doubt(key)
        elif parked := [key for key in owner.ledger.contents() if not owner.ledger.is_replaying(key)]:
            for key in parked:
                self._unpark(key)
        else:
            raise Breach("nothing goes on")

    # -- what goes wrong, or is wanted

    def _die(self) -> None:
        self.owner = self._new_owner()

    def _cut(self) -> None:
        self.owner.lost |= {"both"}

    def _lose_for_a_moment(self) -> None:
        """The connection is back before anybody else is fed: what was settled and sent is sent again on the handles,
        on which only what runs comes to its end."""
        self.owner.lost |= {"fed again"}

    def _lose_the_queue(self) -> None:
        self._lose("queue")
        self.owner.held = ()

    def _lose_the_parking_queue(self) -> None:
        self._lose("parking")
        self.owner.held_parked = ()

    def _lose(self, handle: str) -> None:
        owner = self.owner
        owner.lost |= {handle}
        self.is_uneven = True
        of_queue = handle == "queue"
        owner.line = tuple(
            each for each in owner.line if not isinstance(each, Settled) or isinstance(each.what, tuple) is not of_queue
        )

    def _leave(self) -> None:
        owner = self.owner
        owner.is_leaving = True
        owner.ledger.pause()
        for key, lane in owner.lanes.items():
            running = lane[:1] if key in owner.running else ()
            kept = running + tuple(item for item in lane[len(running) :] if item.parked_id is None)
            owner.lanes[key] = kept
            if len(kept) < len(lane):
                self._obey(owner.ledger.replay_returned(key))

    def _stay(self) -> None:
        self.owner.is_leaving = False
        self._obey(self.owner.ledger.resume())

    def _unpark(self, key: str) -> None:
        self.mended |= {key}
        self._put(UnparkAsked(key))

    def _unpark_unmended(self, key: str) -> None:
        self._put(UnparkAsked(key))

    def _drop(self, key: str) -> None:
        first = self.owner.ledger.contents()[key][0]
        self.dropped |= {name_of(first)}
        self._put(DropAsked(key, (first.owner, first.number)))

    def _doubt(self, key: str) -> None:
        """It has not come for long."""
        self._renew_head(replace(self.owner.lanes[key][0], is_awaited=False))

    def _refuse(self) -> None:
        owner = self.owner
        copy, owner.line = owner.line[0], owner.line[1:]
        assert isinstance(copy, ParkedMessage)
        head = next(iter(owner.lanes[copy.lane]), None)
        if head is None or head.copy is None or head.copy.number != copy.number or head.has_come:
            return
        self._renew_head(replace(head, is_awaited=False))
        if copy.number not in owner.ledger._sent_again:
            self._renew_head(replace(head, is_awaited=False, copy=None, was_sent=False))
            self._obey(owner.ledger.park_refused(copy.number))

    def _swallow(self) -> None:
        self.owner.line = self.owner.line[1:]


def _is_awaited(item: Item) -> bool:
    """Whether its turn lasts until its copy comes, or has not come for long."""
    return item.is_awaited and not item.has_come
