"""What a commit publishes into queues that have no room for all of it."""

import pytest

from lbg_runtime.broker.engine.effects import Published
from lbg_runtime.broker.engine.settings import QueueSettings, RejectOnDiscard
from lbg_runtime.model.errors import BrokerRefusal
from lbg_runtime.model.ids import QueueName

OTHER = QueueName("other")


def commit(stage, *sizes):
    messages = [Published("orders/new", number, size) for number, size in enumerate(sizes, 1)]
    return stage.engine.transactions.commit(stage.publisher_client, messages, ())


def other_queue(stage, **settings):
    stage.engine.create_queue("default", OTHER, QueueSettings(**settings))
    stage.engine.add_queue_subscription("default", OTHER, "orders/>")
    return lambda: stage.engine.queue_status("default", OTHER)


def test_a_queue_that_never_tells_loses_what_it_has_no_room_for_and_the_commit_succeeds(make_stage):
    stage = make_stage()
    silent = other_queue(stage, quota_bytes=9, reject_on_discard=RejectOnDiscard.NEVER)

    commit(stage, 5, 5, 4)  # Each of them alone would have room.

    assert stage.queue.depth == 3
    assert (silent().spooled_bytes, silent().depth, silent().discards.over_quota) == (9, 2, 1)


def test_a_commit_that_is_refused_counts_as_one_discard_of_the_queue_that_refuses_it(make_stage):
    stage = make_stage(quota_bytes=9, reject_on_discard=RejectOnDiscard.NEVER)
    strict = other_queue(stage, quota_bytes=19)

    with pytest.raises(BrokerRefusal, match="503 Spool Over Quota"):
        commit(stage, 10, 10)

    assert (stage.queue.depth, stage.queue.discards.over_quota) == (0, 0)
    assert (strict().depth, strict().discards.over_quota) == (0, 1)
