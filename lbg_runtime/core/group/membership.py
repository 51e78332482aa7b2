"""Who is alive in the group, as one member sees it: no leader, no count to configure, no service but the control topic.

One machine per member, driven by its shell from one task: `handle` for every event, `on_deadline` when `deadline_ms`
is reached. Commands are carried out in the order given. Times are milliseconds of a local monotonic clock; no other
member's clock matters.

Every member publishes a heartbeat at intervals of `heartbeat_ms`, shortened by up to `jitter`. A member is suspect when
`SUSPECT_AFTER_MISSED` heartbeats in a row are missing, and dead after `DEAD_AFTER_MISSED`; half an interval is added
for their transit. So a living member is never suspect while its heartbeats take less than half an interval, and fewer
than `SUSPECT_AFTER_MISSED` in a row are lost. We are in our own view until we leave, however silent the topic is.

A message counts only if it is newer than everything heard from that member before: a higher life, or a higher
sequence of the same life. A higher life replaces the lower one at once. Anything else changes nothing, and makes one
note per sender and reason, and a count.

Silence says something about members only while we can hear. So it is counted from zero when the control topic comes
back, or when this process finds that it was stopped (its deadline is long past); until then nobody's standing changes.

Two processes with one member id: the larger `Life` counts, for each of them and for all others. The loser stands aside:
it says nothing more and is not in its own view, where the winner takes its place. It does not come back; when the
winner has gone, by saying so or by its silence, `WinnerGone` reports it, so that somebody can restart the loser.

One file of more than 400 lines, because speaking, hearing and silence work on one record of peers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import assert_never

from lbg_runtime.core.chance import RandomSource, shortened_ms
from lbg_runtime.core.first_times import FirstTimes
from lbg_runtime.core.flow.commands import Note
from lbg_runtime.core.group.control_codec import RefusalReason
from lbg_runtime.core.group.control_messages import (
    Accept,
    ControlMessage,
    FlowReport,
    Header,
    Heartbeat,
    Leave,
    MemberState,
    Offer,
    Reject,
    ReportedFlow,
    StateRequest,
    Taken,
)
from lbg_runtime.core.group.identity import Identity
from lbg_runtime.core.group.membership_events import (
    ControlConnected,
    ControlLost,
    ControlMessageDropped,
    ControlMessageReceived,
    DrainStarted,
    DuplicateMemberFound,
    FlowsReported,
    HeartbeatWanted,
    JoinDone,
    LeaveRequested,
    MembershipCommand,
    MembershipEvent,
    MoveMessageHeard,
    OwnFlowsChanged,
    SendHeartbeat,
    SendLeave,
    SendStateRequest,
    SettingsDisagree,
    StandAside,
    StripesTold,
    StripingChanged,
    ViewChanged,
    WeightChanged,
    WinnerGone,
)
from lbg_runtime.core.group.membership_timing import MembershipTiming
from lbg_runtime.core.group.peer import Disregard, Peer, Standing
from lbg_runtime.core.group.view import Claims, GroupView, MemberView, owners_by_claims, updated_claims
from lbg_runtime.core.restripe.news import StripesNews
from lbg_runtime.core.restripe.striping import StripingBook
from lbg_runtime.core.standstill import StandstillWatch
from lbg_runtime.model.errors import InvariantViolated
from lbg_runtime.model.ids import MemberId, QueueName

MAX_MEMBERS = 1_000
"""Member ids remembered, living or recently gone; others are refused until some are forgotten."""

MAX_NOTED = 1_000
"""Bound on distinct complaints, each made once: flooding the control topic does not fill the log."""


class OwnState(Enum):
    """How far this member's own life has got."""

    JOINING = "joining"
    ACTIVE = "active"
    DRAINING = "draining"
    ASIDE = "aside"
    """Another process has our id and a newer life. We listen and say nothing, even when it has gone."""
    LEFT = "left"
    """Over: we say nothing and ignore every event."""


_SPOKEN_STATES: Mapping[OwnState, MemberState] = {
    OwnState.JOINING: MemberState.JOINING,
    OwnState.ACTIVE: MemberState.ACTIVE,
    OwnState.DRAINING: MemberState.DRAINING,
}


class MembershipMachine:
    """Decides who is alive; does nothing itself. The module docstring has the callers and the rules."""

    def __init__(
        self,
        identity: Identity,
        settings: MembershipTiming,
        random: RandomSource,
        now_ms: int,
        striping: StripingBook,
    ) -> None:
        self.identity = identity
        self.striping = striping
        """What the group knows about its stripes; part of every heartbeat."""
        self.state = OwnState.JOINING
        self._settings = settings
        self._random = random
        self._sequence = 0
        self._flows: Mapping[QueueName, FlowReport] = {}
        self._claims: Claims = {}
        self._peers: dict[MemberId, Peer] = {}
        self._judge_at_ms: int | None = None
        """When peers are judged next: not after the deadline of any peer; None without peers."""
        self.disregarded: dict[str, int] = dict.fromkeys([reason.value for reason in (*RefusalReason, *Disregard)], 0)
        """Messages on the control topic that did not count, by reason."""
        self._noted = FirstTimes(MAX_NOTED)
        self._changed_at_ms = now_ms
        self.peers_heard_ms: int | None = None
        """When another member last said something that counted; None if never in this life.

        Silence has two causes that cannot be told apart from here: we are alone, or the topic does not reach us. A
        shell that owns fewer than all queues while this does not advance falls back to the rebind cycle."""
        self._other_version_ms: int | None = None
        """When somebody last spoke another version; None if never in this life."""
        self._complete_at_ms: int | None = None
        """When every living member has had time for a heartbeat; None while we cannot hear."""
        self._unjudged: dict[MemberId, Heartbeat] = {}
        """The last heartbeats of members that are bound to nothing and have other settings. Who is wrong shows when the
        view is complete. They are kept even when their senders have left: if two members with different settings begin
        a group, the first to find out leaves, and the other must still find out, or it would have the group to
        itself."""
        self._heartbeat_at_ms = now_ms
        self._last_heartbeat_ms = now_ms

    # -- what a shell reads

    @property
    def view(self) -> GroupView:
        """The living members as known now."""
        views = [peer.view() for peer in self._peers.values() if peer.is_living]
        if self.may_speak:
            views.append(self._own_view())
        return GroupView(tuple(sorted(views, key=lambda one: one.member)), owners_by_claims(self._living_claims()))

    def owner_of(self, queue: QueueName) -> MemberId | None:
        """The owner of the queue according to `view`, without the cost of working out all the others."""
        return owners_by_claims(
            (member, {queue: times[queue]}) for member, times in self._living_claims() if queue in times
        ).get(queue)

    @property
    def may_speak(self) -> bool:
        """Whether the group sees this life as a member: neither gone, nor aside for another process with its id."""
        return self.state in _SPOKEN_STATES

    @property
    def can_hear(self) -> bool:
        """Whether the control topic is reachable, and this life is not over."""
        return self._complete_at_ms is not None

    @property
    def deadline_ms(self) -> int | None:
        """When `on_deadline` must next be called, on the clock of `now_ms`; None to wait for an event.

        It may be too early. It is read after every message, and to look at all peers each time would let made-up
        members keep us from our work.
        """
        if not self.can_hear:
            return None
        heartbeat_at_ms = self._heartbeat_at_ms if self.may_speak else None
        complete_at_ms = self._complete_at_ms if self._unjudged else None
        return min((at for at in (self._judge_at_ms, heartbeat_at_ms, complete_at_ms) if at is not None), default=None)

    def hears_other_versions(self, now_ms: int) -> bool:
        """Whether somebody spoke another version lately. If so, members of which we know nothing may own queues."""
        heard_ms = self._other_version_ms
        return heard_ms is not None and now_ms - heard_ms < self._settings.dead_ms

    def is_stable(self, now_ms: int) -> bool:
        """Whether queues may be placed by this view: it is complete, and nobody came, went or changed for `settle_ms`.

        At the start, and after an outage, settling begins when the view is complete: one heartbeat interval after
        everybody was asked. False while the control topic is out of reach, or a deadline is long past.
        """
        if self._complete_at_ms is None or self._paused_for_ms(now_ms):
            return False
        return now_ms >= max(self._changed_at_ms, self._complete_at_ms) + self._settings.settle_ms

    # -- what a shell calls

    def stamp(self, leap: int = 0) -> Header:
        """The header of the next message of this life, whatever that message is.

        `leap` sequence numbers are skipped before it. If nobody can guess how many, nobody can forge a message with its
        number before it is heard.
        """
        self._sequence += 1 + leap
        return Header(self.identity.group, self.identity.member, self.identity.life, self._sequence)

    def heartbeat(self, flows: Mapping[QueueName, FlowReport], leap: int = 0) -> Heartbeat:
        """The heartbeat that a `SendHeartbeat` asks for; `flows` are all flows that this member is now bound to.

        `leap`: see `stamp`.
        """
        if not self.may_speak:
            raise InvariantViolated(f"a heartbeat in state {self.state.value}")
        header = self.stamp(leap)
        identity = self.identity
        spoken = _SPOKEN_STATES[self.state]
        return Heartbeat(
            header, spoken, identity.weight, identity.settings, flows, self.view.digest(), self.striping.report()
        )

    def handle(self, event: MembershipEvent, now_ms: int) -> list[MembershipCommand]:
        """Process one event and return what to do. Any message and any order of events is allowed here."""
        if self.state is OwnState.LEFT:
            return []
        # A message changes only the peer that sent it, and nothing else changes a peer.
        members = (event.message.header.member,) if isinstance(event, ControlMessageReceived) else ()
        shape = self._shape(members)
        paused_for_ms = self._paused_for_ms(now_ms)
        commands = self._react(event, now_ms)
        self._expect(members)
        # After the event, because it may take away our right to speak. That is not too late: no event judges silence.
        if self.can_hear and not isinstance(event, ControlConnected):
            commands += self._resume(paused_for_ms, now_ms)
        return commands + self._notice_change(members, shape, now_ms)

    def on_deadline(self, now_ms: int) -> list[MembershipCommand]:
        """Act on the deadline if it has been reached; calling this too early does no harm."""
        deadline_ms = self.deadline_ms
        if deadline_ms is None or now_ms < deadline_ms:
            return []
        commands = self._resume(self._paused_for_ms(now_ms), now_ms)
        while self._unjudged and self._is_complete(now_ms):
            commands += self._refuse_settings(self._unjudged.popitem()[1], now_ms) or []
        if self._judge_at_ms is None or now_ms < self._judge_at_ms:
            return commands + self._beat_if_due(now_ms)
        due = [peer for peer in self._peers.values() if now_ms >= self._peer_deadline_ms(peer)]
        members = [peer.member for peer in due]
        shape = self._shape(members)
        for peer in due:
            commands += self._pass_judgement(peer, now_ms)
        self._judge_at_ms = self._next_judgement_ms()
        commands += self._beat_if_due(now_ms)
        return commands + self._notice_change(members, shape, now_ms)

    # -- one step

    def _react(self, event: MembershipEvent, now_ms: int) -> list[MembershipCommand]:
        match event:
            case ControlConnected():
                return self._start_round(now_ms)
            case ControlLost():
                self._complete_at_ms = None
                return []
            case ControlMessageReceived(message):
                return self._hear(message, now_ms)
            case ControlMessageDropped(reason):
                if reason is RefusalReason.VERSION:
                    self._other_version_ms = now_ms
                return self._disregard(reason.value, MemberId(""))
            case OwnFlowsChanged(flows):
                self._flows = flows
                self._claims = updated_claims(self._claims, flows, now_ms)
                self._hurry_heartbeat(now_ms)
                return []
            case JoinDone():
                return self._enter(OwnState.ACTIVE, now_ms) if self.state is OwnState.JOINING else []
            case DrainStarted():
                may_drain = self.state in (OwnState.JOINING, OwnState.ACTIVE)
                return self._enter(OwnState.DRAINING, now_ms) if may_drain else []
            case StripesTold(queue_index, news):
                return self._take_stripes(queue_index, news, now_ms)
            case HeartbeatWanted():
                return self._beat_if_heard(now_ms)
            case WeightChanged(weight):
                self.identity = replace(self.identity, weight=weight)
                return self._beat_if_heard(now_ms)
            case LeaveRequested():
                says_so = self.may_speak and self.can_hear
                self.state = OwnState.LEFT
                self._complete_at_ms = None
                return [SendLeave(Leave(self.stamp()))] if says_so else []
            case _:
                assert_never(event)

    def _enter(self, state: OwnState, now_ms: int) -> list[MembershipCommand]:
        self.state = state
        return self._beat_if_heard(now_ms)

    def _notice_change(
        self, members: Sequence[MemberId], before: tuple[object, ...], now_ms: int
    ) -> list[MembershipCommand]:
        if self._shape(members) == before:
            return []
        self._changed_at_ms = now_ms
        return [ViewChanged(self.view)]

    def _shape(self, members: Sequence[MemberId]) -> tuple[object, ...]:
        """The part of the view whose change starts a new settling period, as far as it concerns us or these members."""
        peers = [self._peers.get(member) for member in members]
        shapes = [peer.shape if peer is not None and peer.is_living else None for peer in peers]
        return self.state, self.identity.weight, *shapes

    def _living_claims(self) -> list[tuple[MemberId, Claims]]:
        claims = [(member, peer.claims) for member, peer in self._peers.items() if peer.is_living]
        return [*claims, (self.identity.member, self._claims)] if self.may_speak else claims

    def _own_view(self) -> MemberView:
        identity = self.identity
        spoken = _SPOKEN_STATES[self.state]
        return MemberView(identity.member, identity.life, spoken, identity.weight, False, self._flows)

    # -- speaking

    def _start_round(self, now_ms: int) -> list[MembershipCommand]:
        """We can hear, for the first time or again: nobody has been silent yet, and the view is complete after one
        interval."""
        self._complete_at_ms = now_ms + self._settings.heartbeat_ms
        for peer in self._peers.values():
            peer.restart_clock(now_ms)
        self._judge_at_ms = self._next_judgement_ms()
        if not self.may_speak:
            return []
        # The heartbeat first, so that a new life becomes known together with all its facts.
        return [*self._beat(now_ms), SendStateRequest()]

    def _beat_if_heard(self, now_ms: int) -> list[MembershipCommand]:
        return self._beat(now_ms) if self.can_hear and self.may_speak else []

    def _beat(self, now_ms: int) -> list[MembershipCommand]:
        self._last_heartbeat_ms = now_ms
        settings = self._settings
        self._heartbeat_at_ms = now_ms + shortened_ms(settings.heartbeat_ms, settings.jitter, self._random)
        return [SendHeartbeat()]

    def _beat_if_due(self, now_ms: int) -> list[MembershipCommand]:
        return self._beat(now_ms) if self.may_speak and now_ms >= self._heartbeat_at_ms else []

    def _hurry_heartbeat(self, now_ms: int) -> None:
        """Make the next heartbeat come soon, but not at once: ten members that join together get one answer."""
        gap_ms = self._settings.heartbeat_ms // 10
        soon_ms = max(now_ms, self._last_heartbeat_ms + gap_ms) + round(self._random.uniform(0, gap_ms))
        self._heartbeat_at_ms = min(self._heartbeat_at_ms, soon_ms)

    # -- hearing

    def _hear(self, message: ControlMessage, now_ms: int) -> list[MembershipCommand]:
        header = message.header
        commands: list[MembershipCommand] = []
        is_own_id = header.member == self.identity.member
        if is_own_id and header.life <= self.identity.life:
            return self._hear_own_id(message, now_ms)
        if is_own_id and self.state is not OwnState.ASIDE:
            self.state = OwnState.ASIDE
            commands = [DuplicateMemberFound(header.life), StandAside()]
        if reason := self._reason_to_disregard(header):
            return commands + self._disregard(reason.value, header.member)
        if isinstance(message, Heartbeat) and (refusal := self._refuse_settings(message, now_ms)) is not None:
            if is_own_id:
                # It counts for nothing but this: the process that we stand aside for is alive. Without that, we would
                # not notice when it is gone.
                winner = self._peers.get(header.member) or self._admit(header, now_ms)
                winner.heard_at_ms = now_ms
            return commands + refusal
        self.peers_heard_ms = now_ms
        return commands + self._take(message, self._admit(header, now_ms), now_ms)

    def _hear_own_id(self, message: ControlMessage, now_ms: int) -> list[MembershipCommand]:
        life = message.header.life
        # Our own message came back, or an earlier life of ours is leaving, which is no news.
        if life == self.identity.life or isinstance(message, Leave):
            return []
        # The other process finds out by hearing us.
        self._hurry_heartbeat(now_ms)
        return [DuplicateMemberFound(life)] if self._noted.is_first(("duplicate", life)) else []

    def _reason_to_disregard(self, header: Header) -> Disregard | None:
        peer = self._peers.get(header.member)
        if peer is None:
            return Disregard.TOO_MANY_MEMBERS if len(self._peers) >= MAX_MEMBERS else None
        if header.life != peer.life:
            return Disregard.OLD_LIFE if header.life < peer.life else None
        if peer.standing is Standing.LEFT:
            return Disregard.LEFT
        return Disregard.OLD_SEQUENCE if header.sequence <= peer.sequence else None

    def _disregard(self, reason: str, member: MemberId) -> list[MembershipCommand]:
        self.disregarded[reason] += 1
        # Members beyond the limit share one note: made-up ids, each with its own, would leave no room for others.
        noted = (reason,) if reason == Disregard.TOO_MANY_MEMBERS.value else (reason, member)
        if not self._noted.is_first(noted):
            return []
        return [Note("control_message_disregarded", {"other": member, "reason": reason})]

    def _refuse_settings(self, heartbeat: Heartbeat, now_ms: int) -> list[MembershipCommand] | None:
        """What to report about a peer that was started with other settings; None if they agree."""
        member, ours, theirs = heartbeat.header.member, dict(self.identity.settings), dict(heartbeat.settings)
        if self.striping.disagrees(heartbeat.striping):
            ours["group.queue_count"] = str(self.striping.now.queue_count)
            theirs["group.queue_count"] = str(heartbeat.striping.striping.queue_count)
        if ours == theirs:
            self._unjudged.pop(member, None)
            return None
        if not heartbeat.flows and not self._is_complete(now_ms) and len(self._unjudged) < MAX_MEMBERS:
            # It may be as new as we are. The members that own queues have yet to say which settings are the group's.
            self._unjudged[member] = heartbeat
            return []
        news = [
            name
            for name in sorted({*ours, *theirs})
            if ours.get(name) != theirs.get(name) and self._noted.is_first((member, name, theirs.get(name)))
        ]
        if not news:
            return []
        # The group is with us if members that agree with us own queues, and this one is not even bound to any.
        is_alone = not heartbeat.flows and any(peer.claims for peer in self._peers.values() if peer.is_living)
        return [SettingsDisagree(member, name, ours.get(name), theirs.get(name), is_alone) for name in news]

    def _admit(self, header: Header, now_ms: int) -> Peer:
        """Return the record of the sender, marked as heard just now; a new record for a new life."""
        peer = self._peers.get(header.member)
        if peer is None or header.life > peer.life:
            watch = StandstillWatch[QueueName](self._settings.suspect_ms)
            peer = Peer(header.member, header.life, header.sequence, now_ms, watch)
            self._peers[header.member] = peer
        peer.hear(header, now_ms)
        return peer

    def _take(self, message: ControlMessage, peer: Peer, now_ms: int) -> list[MembershipCommand]:
        match message:
            case Heartbeat():
                peer.beat(message)
                news: list[MembershipCommand] = [StripingChanged()] if self.striping.hear(message.striping) else []
                news += self._take_flows(peer, message.flows, now_ms)
                for queue, lasts_ms in peer.look_for_contests(self._flows, now_ms):
                    facts: dict[str, str | int] = {"queue": queue, "other": peer.member, "for_ms": lasts_ms}
                    news.append(Note("queue_fed_to_two", facts))
                return news
            case StateRequest():
                self._hurry_heartbeat(now_ms)
                return []
            case Leave():
                peer.go(Standing.LEFT, now_ms)
                return self._note_gone(peer)
            case Taken() | Offer() | Accept() | Reject() if not peer.is_living:
                return []
            case Taken(_, queue, _, epoch):
                taken = FlowReport(ReportedFlow.ACTIVE, epoch, 0)
                changes = self._take_flows(peer, {**peer.flows, queue: taken}, now_ms)
                return [*changes, MoveMessageHeard(message)]
            case Offer() | Accept() | Reject():
                return [MoveMessageHeard(message)]
            case _:
                assert_never(message)

    def _take_flows(self, peer: Peer, flows: Mapping[QueueName, FlowReport], now_ms: int) -> list[MembershipCommand]:
        return [FlowsReported()] if peer.report(flows, now_ms) else []

    def _take_stripes(self, queue_index: int, news: StripesNews, now_ms: int) -> list[MembershipCommand]:
        if not self.striping.see(news, queue_index):
            return []
        # The member that handles the shard next is waiting for this news.
        return [StripingChanged(), *self._beat_if_heard(now_ms)]

    # -- silence

    def _is_complete(self, now_ms: int) -> bool:
        return self._complete_at_ms is not None and now_ms >= self._complete_at_ms

    def _next_judgement_ms(self) -> int | None:
        return min(map(self._peer_deadline_ms, self._peers.values()), default=None)

    def _expect(self, members: Sequence[MemberId]) -> None:
        """Bring the next judgement forward, if one of these members is due before it."""
        deadlines = [self._peer_deadline_ms(self._peers[member]) for member in members if member in self._peers]
        if self._judge_at_ms is not None:
            deadlines.append(self._judge_at_ms)
        self._judge_at_ms = min(deadlines, default=None)

    def _peer_deadline_ms(self, peer: Peer) -> int:
        match peer.standing:
            case Standing.ALIVE:
                return peer.heard_at_ms + self._settings.suspect_ms
            case Standing.SUSPECT | Standing.ANNOUNCED:
                return peer.heard_at_ms + self._settings.dead_ms
            case Standing.DEAD | Standing.LEFT:
                return peer.gone_at_ms + self._settings.forget_ms
            case _:
                assert_never(peer.standing)

    def _pass_judgement(self, peer: Peer, now_ms: int) -> list[MembershipCommand]:
        """Act on a peer whose deadline has been reached."""
        match peer.standing:
            case Standing.ALIVE:
                peer.standing = Standing.SUSPECT
                return []
            case Standing.SUSPECT:
                peer.go(Standing.DEAD, now_ms)
                return self._note_gone(peer)
            case Standing.ANNOUNCED:
                del self._peers[peer.member]
                return self._note_gone(peer)
            case Standing.DEAD | Standing.LEFT:
                del self._peers[peer.member]
                return []
            case _:
                assert_never(peer.standing)

    def _note_gone(self, peer: Peer) -> list[MembershipCommand]:
        # Only a member that stands aside has a peer with its own id.
        return [WinnerGone()] if peer.member == self.identity.member else []

    def _paused_for_ms(self, now_ms: int) -> int:
        """How long this process has been stopped, judged by its deadline; 0 unless that is long enough to matter."""
        deadline_ms = self.deadline_ms
        late_ms = now_ms - deadline_ms if deadline_ms is not None else 0
        return late_ms if late_ms > self._settings.heartbeat_ms else 0

    def _resume(self, paused_for_ms: int, now_ms: int) -> list[MembershipCommand]:
        """After a pause of our own, the others' messages may still be on their way: ask again, and judge nobody yet."""
        if not paused_for_ms:
            return []
        return [Note("membership_paused", {"paused_for_ms": paused_for_ms}), *self._start_round(now_ms)]
