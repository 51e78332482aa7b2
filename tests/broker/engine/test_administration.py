from dataclasses import replace

import pytest

from lbg_runtime.broker.engine.accounts import Account, AclProfile, ClientProfile, TopicRule
from lbg_runtime.broker.engine.effects import ActivityChanged, ClientEnded, DeliverDirect, FlowEnded, Published
from lbg_runtime.broker.engine.settings import AccessType, Permission, QueueSettings, RejectOnDiscard
from lbg_runtime.model.errors import BrokerRefusal
from lbg_runtime.model.ids import QueueName

QUEUE = QueueName("orders")
OTHER = QueueName("all")


def change(stage, **settings):
    new = replace(stage.queue.settings, **settings)
    return stage.engine.administration.change_queue("default", QUEUE, new)


def refused(act, *args, **options):
    with pytest.raises(BrokerRefusal) as caught:
        act(*args, **options)
    return str(caught.value)


# -- what comes in


@pytest.mark.parametrize(
    ("when", "told"),
    [
        (RejectOnDiscard.NEVER, False),
        (RejectOnDiscard.WHEN_QUEUE_ENABLED, False),
        (RejectOnDiscard.ALWAYS, True),
    ],
)
def test_a_queue_without_ingress_takes_nothing_and_may_say_so(make_stage, when, told):
    stage = make_stage(reject_on_discard=when)
    change(stage, ingress_enabled=False)
    if told:
        assert refused(stage.publish) == "503 Queue Shutdown"
    else:
        assert stage.publish() == []
    assert stage.queue.depth == 0
    change(stage, ingress_enabled=True)
    stage.publish()
    assert stage.queue.depth == 1


@pytest.mark.parametrize(
    ("when", "told"),
    [
        (RejectOnDiscard.NEVER, False),
        (RejectOnDiscard.WHEN_QUEUE_ENABLED, True),
        (RejectOnDiscard.ALWAYS, True),
    ],
)
def test_a_full_queue_may_say_so(make_stage, when, told):
    stage = make_stage(reject_on_discard=when, quota_bytes=5)
    stage.publish(size_bytes=5)
    if told:
        assert refused(stage.publish) == "503 Spool Over Quota"
    else:
        assert stage.publish() == []
    assert stage.queue.depth == 1


def test_a_queue_that_takes_none_silently_does_not_keep_a_message_from_the_others(stage):
    stage.engine.create_queue("default", OTHER, QueueSettings())
    stage.engine.add_queue_subscription("default", OTHER, ">")
    change(stage, ingress_enabled=False)
    stage.publish()
    assert stage.queue.depth == 0
    assert stage.engine.queue_depth("default", OTHER) == 1


# -- who may have flows


def test_a_queue_without_egress_ends_its_flows_without_electing_one_and_admits_none(stage):
    ann, active = stage.consumer("ann")
    bob, standby = stage.consumer("bob")
    stage.open(active)
    stage.publish(2)

    assert change(stage, egress_enabled=False) == [
        FlowEnded(ann, active, "Service Unavailable"),
        FlowEnded(bob, standby, "Service Unavailable"),
    ]
    assert stage.queue.flows == ()
    assert (stage.queue.depth, stage.queue.unacked_count) == (2, 0)
    assert refused(stage.bind, ann) == "503 Queue Shutdown"
    assert stage.queue.binds.disabled == 1

    change(stage, egress_enabled=True)
    effects = stage.open(stage.bind(ann).flow)
    assert stage.numbers(effects) == [1, 2]
    assert stage.flags(effects) == [True, True]


@pytest.mark.parametrize(
    "settings",
    [{"access_type": AccessType.NON_EXCLUSIVE}, {"owner": "ann"}, {"permission": Permission.CONSUME}],
)
def test_a_change_of_who_is_admitted_ends_flows_and_leaves_the_queue_open(stage, settings):
    _, flow = stage.consumer("ann")
    (ended,) = change(stage, **settings)
    assert isinstance(ended, FlowEnded)
    assert ended.flow == flow
    assert stage.bind(stage.client("bob")).active


def test_another_change_keeps_flows(stage):
    stage.consumer("ann")
    assert change(stage, max_bind_count=1, quota_bytes=7) == []
    assert len(stage.queue.flows) == 1
    assert refused(stage.consumer, "bob") == "503 Max clients exceeded for queue"


def test_a_larger_limit_of_unsettled_messages_lets_more_through_at_once(make_stage):
    stage = make_stage(max_unacked_per_flow=1)
    stage.open_consumer("ann")
    assert stage.numbers(stage.publish(3)) == [1]
    assert stage.numbers(change(stage, max_unacked_per_flow=3)) == [2, 3]


@pytest.mark.parametrize(
    ("permission", "browses", "consumes", "modifies"),
    [
        (Permission.NO_ACCESS, False, False, False),
        (Permission.READ_ONLY, True, False, False),
        (Permission.CONSUME, True, True, False),
        (Permission.MODIFY_TOPIC, True, True, True),
        (Permission.DELETE, True, True, True),
    ],
)
def test_a_permission_is_for_all_but_the_owner(make_stage, permission, browses, consumes, modifies):
    stage = make_stage(owner="boss", permission=permission)
    guest = stage.client("guest")
    boss, _ = stage.engine.connect("default", "boss", "", "boss")

    def may(act, *args, **options):
        try:
            act(*args, **options)
        except BrokerRefusal as refusal:
            return {"403 Permission Not Allowed": False}[str(refusal)]
        return True

    assert may(stage.bind, guest, browser=True) is browses
    assert may(stage.bind, guest) is consumes
    assert may(stage.engine.subscribe_queue, guest, QUEUE, "guests") is modifies
    assert may(stage.engine.unsubscribe_queue, guest, QUEUE, "orders/>") is modifies
    assert may(stage.bind, boss)
    assert may(stage.engine.subscribe_queue, boss, QUEUE, "bosses")


def test_binds_are_counted_by_how_they_ended(make_stage):
    stage = make_stage(owner="boss", permission=Permission.NO_ACCESS, max_bind_count=1)
    boss, _ = stage.engine.connect("default", "boss", "", "boss")
    stage.bind(boss)
    refused(stage.bind, boss)
    refused(stage.bind, stage.client("guest"))
    counts = stage.queue.binds
    assert (counts.requested, counts.succeeded, counts.max_exceeded, counts.other) == (3, 1, 1, 1)


# -- messages


def test_all_messages_are_deleted_whoever_holds_them(stage):
    _, flow = stage.consumer("ann")
    stage.open(flow, window=2)
    stage.publish(3)
    assert stage.engine.administration.delete_messages("default", QUEUE) == []
    assert (stage.queue.depth, stage.queue.unacked_count, stage.queue.flows[0].unacked_count) == (0, 0, 0)
    assert stage.settle(flow, 1, 2) == []
    assert stage.numbers(stage.open(flow, received_up_to=2) + stage.publish()) == [4]


def test_a_message_is_deleted_by_its_place_and_makes_room_for_the_next(make_stage):
    stage = make_stage(max_unacked_per_flow=1)
    stage.open_consumer("ann")
    stage.publish(3)
    seen = stage.engine.administration.queue_messages("default", QUEUE)
    assert [(m.sequence, m.is_undelivered) for m in seen] == [(1, False), (2, True), (3, True)]
    assert stage.numbers(stage.engine.administration.delete_messages("default", QUEUE, {1, 2})) == [3]


def test_a_deleted_message_cannot_be_claimed_over_a_broken_connection(stage):
    ann, _ = stage.open_consumer("ann")
    stage.publish(2)
    stage.engine.disconnect(ann)
    stage.engine.administration.delete_messages("default", QUEUE)
    again = stage.bind(stage.client("ann"), last_received_id=2)
    assert stage.open(again.flow, received_up_to=2) == []
    assert stage.queue.depth == 0


# -- clients


def test_a_client_that_is_ended_leaves_its_queues_to_the_next(stage):
    ann, active = stage.consumer("ann")
    bob, standby = stage.consumer("bob")
    stage.open(active)
    stage.open(standby)
    stage.publish()
    effects = stage.engine.administration.end_client("default", "ann")
    assert effects[:2] == [ClientEnded(ann, "Disconnected By Administrator"), ActivityChanged(bob, standby, True)]
    assert stage.flags(effects) == [True]
    assert refused(stage.engine.administration.end_client, "default", "ann") == "503 Service Unavailable"


def test_clients_of_an_account_are_ended_and_no_others(stage):
    accounts = stage.engine.administration.accounts("default")
    accounts.put(Account("staff"))
    ann, _ = stage.engine.connect("default", "staff", "", "ann")
    stage.client("bob")
    assert stage.engine.administration.end_clients_of("default", "staff") == [
        ClientEnded(ann, "Client Username Is Shutdown")
    ]
    assert stage.engine.administration.client_names("default") == ("publisher", "bob")


def test_what_one_client_of_an_account_that_is_ended_had_goes_to_no_other_of_it(stage):
    """It went from each to the next, and several handled it at the same time."""
    stage.engine.administration.accounts("default").put(Account("staff"))
    for name in ("ann", "bob"):
        client, _ = stage.engine.connect("default", "staff", "", name)
        stage.open(stage.bind(client).flow)
    _, eve = stage.open_consumer("eve")
    stage.publish()
    (sent,) = stage.deliveries(stage.engine.administration.end_clients_of("default", "staff"))
    assert sent.flow == eve


def test_a_client_is_seen_with_what_it_holds(stage):
    client, _ = stage.engine.connect("default", "anybody", "", "ann", "127.0.0.1")
    stage.engine.subscribe(client, "news/>")
    flow = stage.bind(client).flow
    seen = stage.engine.administration.client("default", "ann")
    assert (seen.username, seen.account, seen.address) == ("anybody", "default", "127.0.0.1")
    assert seen.subscriptions == ("news/>",)
    assert [(queue, held.flow, held.active) for queue, held in seen.flows] == [(QUEUE, flow, True)]


# -- what an account allows


def test_topics_that_an_acl_profile_denies(stage):
    acl = AclProfile(publish=TopicRule(False, ("orders/>",)), subscribe=TopicRule(False, ("news",)))
    stage.engine.administration.accounts("default").put(Account("staff", acl=acl))
    client, _ = stage.engine.connect("default", "staff", "", "ann")
    flow = stage.engine.open_publisher(client, "").flow
    listener = stage.client("listener")
    stage.engine.subscribe(listener, ">")

    stage.engine.publish(flow, 1, Published("orders/1", 1, 1))
    assert refused(stage.engine.publish, flow, 2, Published("news", 1, 1)) == "403 Publish ACL Denied"
    assert refused(stage.engine.publish, flow, 2, Published("news", 1, 1)) == "403 Publish ACL Denied"
    assert stage.engine.publish_direct(client, Published("news", 1, 1)) == []
    message = Published("orders/1", 1, 1)
    assert DeliverDirect(listener, message) in stage.engine.publish_direct(client, message)

    stage.engine.subscribe(client, "news")
    assert refused(stage.engine.subscribe, client, "orders/>") == "403 Subscription ACL Denied"
    assert refused(stage.engine.subscribe, client, "#share/g/orders/>") == "403 Subscription ACL Denied"
    assert refused(stage.engine.subscribe_queue, client, QUEUE, "others") == "403 Subscription ACL Denied"


def test_what_a_client_profile_denies(stage):
    profile = ClientProfile(may_send=False, may_receive=False, may_create_queues=False)
    stage.engine.administration.accounts("default").put(Account("guest", profile=profile))
    client, _ = stage.engine.connect("default", "guest", "", "ann")
    assert stage.engine.profile_of(client) == profile
    for act in (
        lambda: stage.engine.open_publisher(client, ""),
        lambda: stage.engine.open_transacted_publisher(client),
        lambda: stage.bind(client),
        lambda: stage.engine.provision(client, OTHER, QueueSettings()),
    ):
        assert refused(act) == "403 Permission Not Allowed"


def test_a_right_that_is_taken_away_is_gone_at_once_for_a_client_that_is_logged_in(stage):
    client = stage.client("ann")
    temporary = QueueName("#P2P/QTMP/ann")

    def bind():
        return stage.engine.bind(client, temporary, create_temporary=True)

    def commit():
        return stage.engine.transactions.commit(client, [Published("orders/new", 1, 1)], ())

    bind()
    commit()
    profile = ClientProfile(may_create_queues=False, may_use_transactions=False)
    stage.engine.administration.accounts("default").put(Account("default", profile=profile))
    bind()  # It is there.
    stage.engine.delete_queue("default", temporary)
    assert refused(bind) == refused(commit) == "403 Permission Not Allowed"
    assert stage.engine.queue_names("default") == (QUEUE,)
    assert stage.queue.depth == 1
