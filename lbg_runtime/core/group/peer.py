"""For a membership machine: what it remembers about one other member id."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from lbg_runtime.core.group.control_messages import FlowReport, Header, Heartbeat, Life, ReportedFlow
from lbg_runtime.core.group.view import Claims, MemberView, tell_something_else, updated_claims
from lbg_runtime.core.standstill import StandingAt, StandstillWatch
from lbg_runtime.model.errors import InvariantViolated
from lbg_runtime.model.ids import MemberId, QueueName


class Standing(Enum):
    """What we believe about a peer's life."""

    ANNOUNCED = "announced"
    """It has spoken, but its heartbeat has not been heard: not in the view."""
    ALIVE = "alive"
    SUSPECT = "suspect"
    """Silent for some heartbeats: keeps what it has and gets nothing new."""
    DEAD = "dead"
    """Silent for too long: not in the view. Comes back by speaking."""
    LEFT = "left"
    """It said that it leaves: not in the view, and this life does not come back."""


class Disregard(Enum):
    """Why a message of our group does not count. Values appear in notes."""

    OLD_LIFE = "old_life"
    OLD_SEQUENCE = "old_sequence"
    LEFT = "left"
    TOO_MANY_MEMBERS = "too_many_members"


@dataclass(slots=True)
class Peer:
    """One member id's newest life. Owned by one membership machine, which decides its standing."""

    member: MemberId
    life: Life
    sequence: int
    """The highest sequence heard."""
    heard_at_ms: int
    """When a message that counts was last heard from it or, if later, when we became able to hear again."""
    contested: StandstillWatch[QueueName]
    """Queues that both it and we report as fed, heartbeat after heartbeat."""
    standing: Standing = Standing.ANNOUNCED
    gone_at_ms: int = 0
    """When it became DEAD or LEFT or, if later, when we became able to hear again."""
    heartbeat: Heartbeat | None = None
    """The last heartbeat; None while it is ANNOUNCED for the first time."""
    flows: Mapping[QueueName, FlowReport] = field(default_factory=dict)
    claims: Claims = field(default_factory=dict)

    @property
    def is_living(self) -> bool:
        """Whether it belongs in the view."""
        return self.standing in (Standing.ALIVE, Standing.SUSPECT)

    @property
    def shape(self) -> tuple[MemberId, Life, str, str, int]:
        """What about it changes placement, apart from the queues that it owns."""
        beat = self._known()
        return self.member, self.life, self.standing.value, beat.state.value, beat.weight

    def hear(self, header: Header, now_ms: int) -> None:
        """Record that something new came from this life. A peer thought dead is back only with its next heartbeat."""
        self.sequence = header.sequence
        self.heard_at_ms = now_ms
        match self.standing:
            case Standing.SUSPECT:
                self.standing = Standing.ALIVE
            case Standing.DEAD:
                self.standing = Standing.ANNOUNCED
            case Standing.ANNOUNCED | Standing.ALIVE | Standing.LEFT:
                pass

    def restart_clock(self, now_ms: int) -> None:
        """Restart the clock of its silence, and of the time for which we remember that it has gone."""
        self.heard_at_ms = now_ms
        self.gone_at_ms = now_ms

    def beat(self, heartbeat: Heartbeat) -> None:
        """Take over its heartbeat, except the flows."""
        self.heartbeat = heartbeat
        self.standing = Standing.ALIVE

    def report(self, flows: Mapping[QueueName, FlowReport], now_ms: int) -> bool:
        """Take over its flows; return whether anything but the counts in flight is new."""
        is_news = tell_something_else(flows, self.flows)
        self.flows = flows
        self.claims = updated_claims(self.claims, flows, now_ms)
        return is_news

    def look_for_contests(self, ours: Mapping[QueueName, FlowReport], now_ms: int) -> tuple[tuple[QueueName, int], ...]:
        """After its heartbeat: queues that both of us have reported as fed for too long, and for how many ms.

        For a moment two members may report so, as one of them does not know yet. For longer they do only if the broker
        feeds both: the queue is no longer exclusive, and no order is kept. A flow that is draining does not count.
        """
        active = ReportedFlow.ACTIVE
        fed = [
            StandingAt(queue, None, None)
            for queue in self.claims
            if queue in ours and ours[queue].state is self.flows[queue].state is active
        ]
        return self.contested.look(fed, now_ms).began

    def go(self, standing: Standing, now_ms: int) -> None:
        """Mark it DEAD or LEFT; it no longer owns what it owned."""
        self.standing = standing
        self.gone_at_ms = now_ms
        self.flows = {}
        self.claims = {}

    def view(self) -> MemberView:
        """The member as the group's view shows it; only for a living one."""
        beat = self._known()
        is_suspect = self.standing is Standing.SUSPECT
        return MemberView(self.member, self.life, beat.state, beat.weight, is_suspect, self.flows)

    def _known(self) -> Heartbeat:
        if self.heartbeat is None:
            raise InvariantViolated(f"member {self.member} is {self.standing.value} without a heartbeat")
        return self.heartbeat
