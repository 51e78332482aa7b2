"""The protocol of whoever is told what happens to a member's flows: the supervisor."""

from typing import TYPE_CHECKING, Protocol

from lbg_runtime.core.group.control_plane import ProbeAsked
from lbg_runtime.core.restripe.news import StripesNews
from lbg_runtime.model.errors import BindFailed
from lbg_runtime.runtime.runners.handling import Handling

if TYPE_CHECKING:
    from lbg_runtime.runtime.flow.runner import FlowRunner


class FlowOwner(Protocol):
    """Called on the loop by the flow runners of a member. Must not raise or block; may post to the runners."""

    def flow_changed(self, runner: "FlowRunner") -> None:
        """A call of the flow machine has ended in another state than it began in; called in order, before the commands
        of that call are carried out.

        Not for a state that is only passed through within one call, such as DRAINING when nothing is in flight. If
        DRAINING goes back to ACTIVE in the same epoch, a hand-back was given up.
        """
        ...

    def settled(self, runner: "FlowRunner", handling: Handling) -> None:
        """A delivery, or a replay, is settled."""
        ...

    def bind_refused(self, runner: "FlowRunner", refusal: BindFailed) -> None:
        """The broker has permanently refused a bind of a flow that was never bound; the flow machine has been told."""
        ...

    def stripes_told(self, runner: "FlowRunner", news: StripesNews) -> None:
        """The queue has said something about a re-striping."""
        ...

    def probe_asked(self, probe: ProbeAsked) -> None:
        """Post `SettlementsReached` to the flow once the broker is known to have read everything that was sent until
        now, which includes the flow's settlements."""
        ...
