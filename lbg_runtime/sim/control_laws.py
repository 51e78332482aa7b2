"""What cooperative members owe each other, checked on a run's history: agreement, patience, and eventual rest.

None of it is needed for order; the laws of `sim.laws` hold without it. A run with counted members breaks none of these.
"""

from collections import Counter
from collections.abc import Callable, Iterator

from lbg_runtime.core.group.control_messages import Accept, MoveId, Offer
from lbg_runtime.core.group.control_plane import QUEUE_GONE, STAND_ASIDE
from lbg_runtime.model.ids import MemberId, QueueName
from lbg_runtime.sim.facts import Facts
from lbg_runtime.sim.history import Handle, Life, member_of
from lbg_runtime.sim.settings import SimSettings
from lbg_runtime.sim.violation import Breach, Violation, violations_of


def control_violations(facts: Facts, settings: SimSettings) -> list[Violation]:
    violations = [violation for law in LAWS for violation in violations_of(law, facts)]
    return violations + violations_of(offers_are_patient, facts, settings)


def calm_groups_are_settled(facts: Facts) -> Iterator[Breach]:
    """When cooperative members are left in peace, every queue is fed, at the home that all of them name, and no member
    has more than one queue more than another; and this stays so."""
    if facts.calm is None:
        return
    began, calm = facts.calm
    fed = _fed_at(facts, began)
    lives = [life for life, _ in calm.homes]
    for life, homes in calm.homes:
        for queue, home in zip(calm.queues, homes, strict=True):
            owner = fed.get(queue)
            if owner is None or owner.life not in lives or member_of(owner.life) != home:
                story = f"{queue} is fed to {owner}, and {life} wants {home} to have it"
                yield calm.at_ms, story
    shares = [sum(handle.life == life for handle in fed.values()) for life in lives]
    if shares and max(shares) - min(shares) > 1:
        yield calm.at_ms, f"{dict(zip(lives, shares, strict=True))}"
    for position, change in facts.fed:
        if began < position < (facts.calm_end or began):
            yield change.at_ms, f"{change} in a settled group"


def hand_backs_are_accepted(facts: Facts) -> Iterator[Breach]:
    """A queue is given up for another member only after that member, asked by the owner, has said that it takes it."""
    offers: dict[MoveId, tuple[Life, Offer]] = {}
    accepted: dict[tuple[MoveId, MemberId], int] = {}
    for position, said in facts.said:
        match said.message:
            case Offer():
                offers[said.message.move_id] = (said.life, said.message)
            case Accept():
                accepted[said.message.move_id, said.message.header.member] = position
            case _:
                pass
    for position, asked in facts.hand_backs:
        # A process that stands aside asks nobody: it is no longer a member, and the next in line may have the queue.
        stands_aside = asked.move_id == STAND_ASIDE and facts.aside.get(asked.life, position) < position
        if asked.move_id == QUEUE_GONE or stands_aside:
            continue
        life, offer = offers.get(MoveId(asked.move_id), (None, None))
        if offer is None or life != asked.life or accepted.get((offer.move_id, offer.to), position) >= position:
            yield asked.at_ms, f"{asked} without an accept"


def only_standbys_accept(facts: Facts) -> Iterator[Breach]:
    """A member that says that it takes a queue is bound to it and, as far as it knows, not fed."""
    handles: dict[tuple[Life, QueueName], list[Handle]] = {}
    for handle in facts.bound:
        handles.setdefault((handle.life, handle.queue), []).append(handle)
    for position, said in facts.said:
        if not isinstance(said.message, Accept):
            continue
        # What happened to a flow at the same moment may not be known yet.
        standing_by = [
            handle
            for handle in handles.get((said.life, said.message.queue), [])
            if facts.bound[handle] < position
            and _is_not_before(facts, facts.handle_ends.get(handle), said.at_ms)
            and _is_not_before(facts, facts.intake_starts.get(handle), said.at_ms)
        ]
        if not standing_by:
            yield said.at_ms, f"{said.life} accepts {said.message}"


def offers_are_patient(facts: Facts, settings: SimSettings) -> Iterator[Breach]:
    """An owner keeps a queue for its tenure, unless it leaves, and waits after each failed move."""
    rebalance = settings.control.rebalance
    fastest_clock = 1 + settings.longest_drift_permille / 1_000
    owned_since: dict[tuple[Life, QueueName], list[int]] = {}
    for handle, position in facts.intake_starts.items():
        owned_since.setdefault((handle.life, handle.queue), []).append(facts.at_ms(position))
    last_offer_ms: dict[tuple[Life, QueueName], int] = {}
    for position, said in facts.said:
        if not isinstance(said.message, Offer):
            continue
        key = (said.life, said.message.queue)
        since_ms = max((at_ms for at_ms in owned_since.get(key, []) if at_ms <= said.at_ms), default=said.at_ms)
        is_leaving = facts.leaving.get(said.life, position) < position
        # One ms for the rounding of a clock that drifts.
        if not is_leaving and (said.at_ms - since_ms + 1) * fastest_clock < rebalance.min_tenure_ms:
            yield said.at_ms, f"{said} after {said.at_ms - since_ms} ms"
        before_ms = last_offer_ms.get(key)
        is_repeated = before_ms is not None and before_ms >= since_ms
        if is_repeated and (said.at_ms - (before_ms or 0) + 1) * fastest_clock < rebalance.backoff_min_ms:
            yield said.at_ms, f"{said} again, {said.at_ms - (before_ms or 0)} ms later"
        last_offer_ms[key] = said.at_ms


def one_process_is_the_member(facts: Facts) -> Iterator[Breach]:
    """Once several processes with one id have been left in peace, all but one stand aside, and nobody stands aside for
    one that has gone."""
    if facts.calm is None:
        return
    began, calm = facts.calm
    taking_part = Counter(member_of(life) for life, _ in calm.homes)
    for member, count in taking_part.items():
        if count > 1:
            yield calm.at_ms, f"{count} of {member} take part"
    for life in facts.aside:
        end = facts.life_ends.get(life)
        if member_of(life) not in taking_part and (end is None or end[0] > began):
            yield calm.at_ms, f"{life} stands aside for nobody"


def only_twins_stand_aside(facts: Facts) -> Iterator[Breach]:
    """No process stands aside for one of its id that had ended before it began: nobody would be the member."""
    for life, position in facts.aside.items():
        others = [other for other in facts.life_starts if other != life and member_of(other) == member_of(life)]
        if not any(_live_together(facts, life, other, position) for other in others):
            yield facts.at_ms(position), f"{life} is alone"


def who_stands_aside_is_out(facts: Facts) -> Iterator[Breach]:
    """A process that stands aside no longer says anything about moves, and takes no queue."""
    for position, said in facts.said:
        if facts.aside.get(said.life, position) < position:
            yield said.at_ms, f"{said} though it stands aside"
    for handle, position in facts.intake_starts.items():
        aside = facts.aside.get(handle.life)
        # Its flows learn of it at the same moment.
        if aside is not None and facts.at_ms(aside) < facts.at_ms(position):
            yield facts.at_ms(position), f"{handle} is taken"


def _live_together(facts: Facts, life: Life, other: Life, position: int) -> bool:
    """Whether the other was alive at some time between the start of this life and the position."""
    other_end = facts.life_ends.get(other)
    return facts.life_starts[other] < position and (other_end is None or other_end[0] > facts.life_starts[life])


def _is_not_before(facts: Facts, position: int | None, at_ms: int) -> bool:
    return position is None or facts.at_ms(position) >= at_ms


def _fed_at(facts: Facts, position: int) -> dict[QueueName, Handle]:
    """By queue, the handle that is fed at this position."""
    fed: dict[QueueName, Handle] = {}
    for at, change in facts.fed:
        closed = facts.closed.get(change.flow)
        if at < position and (closed is None or closed[0] > position):
            fed[change.queue] = change.handle
    return fed


LAWS: tuple[Callable[[Facts], Iterator[Breach]], ...] = (
    calm_groups_are_settled,
    hand_backs_are_accepted,
    only_standbys_accept,
    one_process_is_the_member,
    only_twins_stand_aside,
    who_stands_aside_is_out,
)
