"""Who is told what happens to a flow."""

from typing import TYPE_CHECKING, Protocol

from lbg_runtime.core.group.control_plane import ProbeAsked
from lbg_runtime.core.restripe.news import StripesNews
from lbg_runtime.model.errors import BindFailed
from lbg_runtime.runtime.runners.handling import Handling

if TYPE_CHECKING:
    from lbg_runtime.runtime.flow.runner import FlowRunner


class FlowOwner(Protocol):
    """Has the flow runners of a member, which call it on the loop. Must not raise or block; may post to the runners."""

    def flow_changed(self, runner: "FlowRunner") -> None:
        """A call of the machine has ended in another state; called in order, before the commands are carried out.

        Not for a state that is only passed through within one call, such as DRAINING when nothing is in flight. If
        DRAINING goes back to ACTIVE in the same epoch, a hand-back was given up.
        """
        ...

    def settled(self, runner: "FlowRunner", handling: Handling) -> None:
        """A delivery, or a replay, is settled."""
        ...

    def bind_refused(self, runner: "FlowRunner", refusal: BindFailed) -> None:
        """The broker has refused for good what would have been the flow's first bind, and the machine knows."""
        ...

    def stripes_told(self, runner: "FlowRunner", news: StripesNews) -> None:
        """The queue has said something about a re-striping."""
        ...

    def probe_asked(self, probe: ProbeAsked) -> None:
        """`SettlementsReached` is to be posted when the broker is known to have read everything sent until now, which
        includes the flow's settlements."""
        ...
