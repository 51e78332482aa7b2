"""What a member did between the moment at which a test cut it off from the broker and the moment at which it knew.

In that time another member may have its queues. No runtime can do better: a process that was stopped goes on where it
was, and what it then does comes too late. So this is judged as if it had been done at the moment of the cut.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lbg_runtime.model.record import FlowRecord

_AT_ONCE_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class CutOff:
    """One handle lost its queue at `from_ns`, and its member was told at `told_ns`."""

    from_ns: int
    told_ns: int


class CutOffs:
    """The cut-offs of one life of a member."""

    def __init__(self, flows: Sequence[FlowRecord], cuts_ns: Sequence[int], resumptions_ns: Sequence[int]) -> None:
        """`cuts_ns`: when the test broke the connection, or stopped a process whose connection broke because of that.

        `resumptions_ns`: when such a process was resumed.
        """
        self.flows: list[FlowRecord] = []
        """The flow records, in which handles become inactive when they actually did, not when the member was told."""
        self._by_handle: dict[tuple[int, int], list[CutOff]] = defaultdict(list)
        cuts = sorted(cuts_ns)
        known_ns: dict[tuple[int, int], int] = {}
        for record in _without_old_news(flows, resumptions_ns):
            handle, told_ns = (record.queue, record.bind_epoch), record.mono_ns
            place = bisect_right(cuts, known_ns.get(handle, told_ns))
            if record.event in ("inactive", "released") and place < len(cuts) and cuts[place] <= told_ns:
                cut_ns = cuts[place]
                self._by_handle[handle].append(CutOff(cut_ns, told_ns))
                self.flows.append(replace(record, event="inactive", cause="", mono_ns=cut_ns, t=cut_ns // 1_000))
                # If the connection breaks while a handle is being released, there is no other record of that.
                self.flows += [record] if record.event == "released" else []
            else:
                self.flows.append(record)
            known_ns[handle] = told_ns

    def judged_span(self, queue: int, epoch: int, start_ns: int, done_ns: int) -> tuple[int, int]:
        """Start and end of a handling, as far as the runtime is responsible for them."""
        for cut in self._by_handle.get((queue, epoch), ()):
            # Middleware that creates a task reaches the handler one turn of the loop after the runtime has started it.
            if start_ns - cut.told_ns < _AT_ONCE_NS and done_ns > cut.from_ns:
                return min(start_ns, cut.from_ns), cut.from_ns
        return start_ns, done_ns


def _without_old_news(flows: Sequence[FlowRecord], resumptions_ns: Sequence[int]) -> list[FlowRecord]:
    """Drop activity that a member was told of together with its end, because it was stopped all the time."""
    ordered = sorted(flows, key=lambda record: (record.queue, record.bind_epoch, record.mono_ns))
    kept: list[FlowRecord] = []
    for record in ordered:
        before = kept[-1] if kept else None
        if (
            before is not None
            and before.event == "active"
            and record.event in ("inactive", "down")
            and record.mono_ns - before.mono_ns < _AT_ONCE_NS
            and (before.queue, before.bind_epoch) == (record.queue, record.bind_epoch)
            and any(0 <= before.mono_ns - resumed_ns < _AT_ONCE_NS for resumed_ns in resumptions_ns)
        ):
            kept.pop()
        kept.append(record)
    return kept
