"""The laws of a run, and the one function that checks them on Arrow tables.

A *message* is (publisher, key, number). A *handling* is one dispatch record; it is *complete* when it ended
accepted or rejected. All times of one run are compared on one clock (see "Clocks"). The names are stable: reports
and tests use them.

loss
    Every message that the broker confirmed has a complete handling. This includes the last messages of a key, which
    only the publisher's ledger knows. The run must be over: a message still on its queue counts as lost. Refused
    messages and those of unknown fate are not expected, and may leave gaps. A loss is not proven if a member whose
    journal is missing may have handled the message: while its queue had no owner on record (custody.py).
order
    Within a part (see below; nearly always: a queue), publisher and key, no handling of a message starts before the
    first complete handling of any message with a lower number starts. Counted per late message. Repeats of a message
    already handled do not count. Together with the next law: it does not start before that one is done.
overlap_in_process, overlap_across_processes
    Two handlings of one key in a part never overlap in time, from start to done, complete or not. Counted per handling
    that starts inside another one of its key. In one life of a member the lane forbids it, whatever the broker does.
    Across lives it happens when a member loses its queue while a handler runs. After the flow's `inactive` or `down`
    record, others may handle flagged messages that are no newer, and, once the message itself has come again flagged,
    what follows it: the member knew, settles nothing of it, and can only let it end. Such overlaps are in the accounts.
    For a message without publisher, key or number, any flagged one of its key without them will do. The record counts
    from `epochs.BUFFERED_NS` before it, as the member had to get through what had come before; if it is told right
    after a standstill, from when that began. A member that was cut off for longer without knowing it breaks the law all
    the same.
duplicate_without_fault
    A *duplicate* is a handling of a message after its first complete one. It is allowed only where a fault explains it:
    since the first complete one it was handled on the same queue, and the handling right before it there was not
    complete, or its settlement may not have reached the broker, because (a) its member's life ended uncleanly before
    the flow was released, or (b) its flow became inactive or went down, and the settlement was never sent or was sent
    at most the acknowledgement window (the client sends acknowledgements on a timer of one second) before the
    connection may have been dead: `epochs.SILENCE_NS` before that end, as a network that goes silent is noticed late.
    In (a) the last message that the flow received shows that the network was not silent yet.
duplicate_unflagged
    A duplicate carries the broker's redelivered flag. Without it, it is a second copy. On a partitioned queue, one of
    the two handlings must carry it: the broker may give a message to another member while it waits for its turn at the
    first. Each of the two duplicate laws excuses one duplicate of a message whose fate is unknown according to a
    ledger: its publisher may have sent it twice under one number. Nothing else explains a second copy.
settled_after_epoch
    No settlement is sent once its epoch is over: after the flow's `released` or `down` record, or after a later
    epoch of the same life and queue has become active.
settled_without_outcome
    Only a handling that ended accepted or rejected is settled. One that was cancelled or failed is not.
settled_out_of_order
    On one flow handle the messages of a publisher and key are settled in the order in which they were handled, without
    gaps: if the first complete handling of a message was not settled, or was settled later than a handling that started
    after it, the latter was settled too early. Counted per handling settled too early. A parked message has no record
    until it is replayed, and a message without publisher, key or number is in no order.
started_after_loss
    No handling starts after an `inactive`, `down` or `released` record of its flow without an `active` one in between.
    A delivery that the broker flagged is not judged: what was parked is replayed flagged, from another queue, and can
    be on its way to its handler when the flow dies. Of several attempts, the records have the start of the first.
two_active
    No two flows are fed on one queue at the same time. Only proof counts: a flow is fed from its `active` record to the
    last unflagged message it received and handled, or the start of its drain; a flow released in good order also to the
    end of its last handling. A crashed or cut-off member proves nothing after that, and what a flow that was lost had
    received last may have waited at its member for `epochs.BUFFERED_NS`. An `active` record right behind a
    standstill tells of a moment in it: if it is the only proof, the law is broken only where another flow was fed from
    before the standstill until after the record. Does not apply to members that share a partitioned queue: there only
    keys have one owner at a time, which the laws on overlaps check.
key_on_two_shards
    A key lies in one shard, whoever published it. Two shards mean two queues, and thus no order between them.
shard_in_wrong_queue
    Queue n of N holds the shards s with s mod N = n. N is the queue count of the journal's header or, in a run with
    re-stripings, also one of theirs.
shard_handled_after_leaving, shard_handled_before_arriving
    A shard is handled in the layout of its time (layouts.py). If a re-striping moves it, no handling starts in its old
    queue after the first record that it has left that queue, and none in its new queue before that. Repeats of a
    message already handled do not count. The absence of such a record proves something only if known members had the
    old queue all the time: otherwise a member whose journal is missing may have written it.

Clocks: journals of one host share its monotonic clock, which is exact. Journals of several hosts are moved to their
wall clocks; a difference between two of them within `HOST_CLOCK_TOLERANCE_MS` (book.py) is then doubtful, not proven.
So is one between two lives on one host that is no larger than what its wall clock was set by from one to the other. If
a member took a queue, by the clocks, before the giver of the same move had asked the broker to release it, and by more
than the tolerance, nothing between members is proven (doubts.py). Of several records that a violation could rest on,
the one furthest on the wrong side is compared: if that one is of another host and in doubt, so is the violation, even
if one of the same host would prove it.

Parts: every law but the last step of loss and of key_on_two_shards looks at one part of the run at a time. A part is a
queue; if re-stripings moved shards from queue to queue, a set of queues that none of its shards ever left: those that
are equal modulo the greatest common divisor of all the queue counts. `examine` may be given any set of whole parts: the
dispatches and flows of their queues, the ledger rows of their shards, and unfiltered the tables of files and of
`stripes`, which are small. `layouts.part_count` says how to cut: by queue, and shard, modulo it. `judge` takes all the
examinations, and raises if a part was split between two.

Slices: a part can also be given bit by bit (slices.py), with findings as they become certain and little carried over
(past.py). A run judged in one go is one slice: there is no second way to judge.
"""

from lbg_runtime.validator.findings import Examination
from lbg_runtime.validator.schema import RunTables
from lbg_runtime.validator.slices import SlicedExamination

DEFAULT_ACK_WINDOW_MS = 1500
"""The client's acknowledgement timer of one second, plus a margin for the moment of death."""


def examine(tables: RunTables, ack_window_ms: int = DEFAULT_ACK_WINDOW_MS) -> Examination:
    """Check the laws on whole parts. A plain function of its tables; raises only for tables of another shape."""
    return SlicedExamination(ack_window_ms).finish(tables)
