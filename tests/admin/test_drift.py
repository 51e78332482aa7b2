"""What differs from how a group should be: what is mended, and what is told and left.

More than 400 lines, as it is one group that differs in each way.
"""

from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from lbg_runtime.admin.group import PLAN_COUNTS_S, GroupAdmin
from lbg_runtime.admin.objects import ObjectKind, Ref, marker_ref
from lbg_runtime.admin.problems import find_problems, find_unfit, find_unread_parking
from lbg_runtime.admin.roles import Login, Role
from lbg_runtime.admin.state import read_state
from lbg_runtime.broker.engine.settings import QueueSettings
from lbg_runtime.cli.group.plan_text import plan_as_object, plan_lines
from lbg_runtime.core.parking.records import parking_queue
from lbg_runtime.model.errors import GroupRefused, PlanOutdated, SempRefused, SempUnreachable
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.hashing import HashFunction
from lbg_runtime.model.ids import GroupName, QueueName
from lbg_runtime.semp.address import SempApi
from tests.admin.group_steps import CONTROL, PARKING, SHARED, SPEC, Wire, create, everything


async def test_drift_is_found_and_mended(broker, client):
    admin = await create(client)
    queue = ("msgVpns", "default", "queues", "orders/0")
    await client.update(queue, {"egressEnabled": False, "maxTtl": 5})
    await client.create((*queue, "subscriptions"), {"subscriptionTopic": "others/>"})
    await client.delete((*queue, "subscriptions", "orders-hash/2/>"))
    await client.delete(("msgVpns", "default", "queues", "orders/1"))
    plan = await admin.plan(SPEC)
    assert len(plan.steps) == 1 + 2 + 1 + 1 + 2
    await admin.apply(plan)
    assert (await admin.plan(SPEC)).is_clean
    assert broker.engine.queue_status("default", QueueName("orders/0")).settings.max_ttl_s == 5


@pytest.mark.parametrize(
    ("fail_at", "error", "told_done"),
    [
        (3, SempRefused("POST", 400, 11, "NOT_ALLOWED", "no"), [2]),
        (1, SempUnreachable("http://broker", "gone"), [0]),
        (1, SempRefused("POST", 400, 11, "NOT_ALLOWED", "no"), []),
    ],
)
async def test_what_an_apply_that_fails_may_have_changed_is_told(broker, fail_at, error, told_done):
    broker.transport = Wire(broker.transport, fail_at, error)
    async with broker.client() as client:
        admin = GroupAdmin(client, "default")
        plan = await admin.plan(SPEC)
        with capture_logs() as log, pytest.raises(type(error)):
            await admin.apply(plan)
    assert [each["done"] for each in log if each["event"] == "group_apply_interrupted"] == told_done


async def test_a_queue_that_the_group_should_not_have_is_told_and_left(broker, client):
    admin = await create(client)
    broker.engine.create_queue("default", QueueName("orders/7"), QueueSettings())
    broker.engine.create_queue("default", QueueName("orders/07"), QueueSettings())
    plan = await admin.plan(SPEC)
    assert (plan.steps, plan.surplus, plan.is_clean) == ((), ("orders/7",), False)


async def test_queues_that_members_make_for_a_handler_are_as_they_should_be(broker, client):
    """A handler's own `then` may be `park` or `error_queue` where `failure.then` is neither."""
    admin = await create(client)
    for queue in (*PARKING, QueueName("lbg-errors/orders"), QueueName("lbg-parked/orders/2")):
        broker.engine.create_queue("default", queue, QueueSettings())
    plan = await admin.plan(SPEC)
    assert (plan.steps, plan.surplus) == ((), ("lbg-parked/orders/2",)), "the group has the queues 0 and 1"
    assert plan.remarks == (), "which ends handlers have is not known"


async def test_parking_queues_that_no_member_looks_into_are_told_and_left(broker, client):
    parking = replace(SPEC, aside=PARKING, is_aside_whole=True)
    admin = await create(client, parking)
    assert (await admin.plan(parking)).is_clean
    plan = await admin.plan(replace(parking, aside=()))
    assert (plan.steps, plan.problems, plan.is_clean) == ((), (), False)
    (told,) = map(str, plan.remarks)
    assert told.startswith("queue lbg-parked/orders/0: is there, and 1 more like it, and nobody parks: no member looks")
    broker.engine.delete_queue("default", PARKING[0])
    broker.engine.delete_queue("default", PARKING[1])
    assert (await admin.plan(replace(parking, aside=()))).is_clean


@pytest.mark.parametrize(("count", "more"), [(1, ""), (3, ", and 2 more like it")])
def test_the_first_of_the_parking_queues_that_no_member_looks_into_is_named_and_the_others_counted(count, more):
    state = {Ref(ObjectKind.QUEUE, parking_queue("orders", index)): {} for index in range(count)}
    (told,) = find_unread_parking(replace(SPEC, is_aside_whole=True), state)
    assert told.where == "queue lbg-parked/orders/0"
    assert told.found == f"is there{more}, and nobody parks: no member looks into it"


def test_a_group_without_an_account_of_its_own_needs_no_client_profile():
    assert list(find_problems(replace(SHARED, client_profile="missing"), {})) == []


@pytest.mark.parametrize("role", [Role.PUBLISHER, Role.CONDUCTOR])
@pytest.mark.parametrize("now", [None, Login("others", "o")])
def test_an_account_that_the_group_has_is_neither_dropped_nor_changed(role, now):
    """The old one would be left behind with all its rights."""
    before = replace(SPEC, accounts={**SPEC.accounts, role: Login("theirs", "t")})
    after = SPEC if now is None else replace(SPEC, accounts={**SPEC.accounts, role: now})
    (problem,) = find_problems(after, {marker_ref(SPEC): {"physicalName": before.marker()}})
    assert problem.where == f"semp.{role.value}.username"
    assert problem.found.startswith("None, and" if now is None else "others, and")


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"shape": GroupShape(GroupName("orders"), "orders-hash", 6, 2)}, "group.hash_count"),
        ({"shape": GroupShape(GroupName("orders"), "other", 5, 2)}, "group.hash_prefix"),
        ({"hash_function": HashFunction.JAVA_STRING}, "group.hash_function"),
        ({"accounts": {Role.MEMBER: Login("others", "secret")}}, "connection.username"),
        ({"shape": GroupShape(GroupName("orders"), "orders-hash", 5, 3)}, "group.queue_count"),
    ],
)
async def test_what_would_send_keys_elsewhere_is_no_business_of_apply(client, change, where):
    admin = await create(client)
    before = await everything(client)
    plan = await admin.plan(replace(SPEC, **change))
    assert where in [problem.where for problem in plan.problems]
    with pytest.raises(GroupRefused):
        await admin.apply(plan)
    assert await everything(client) == before


async def test_another_number_of_queues_is_stored_once_the_shards_lie_there(broker, client):
    admin = await create(client)
    wider = replace(SPEC, shape=GroupShape(GroupName("orders"), "orders-hash", 5, 3))
    for index in range(3):
        name = QueueName(f"orders/{index}")
        if index == 2:
            broker.engine.create_queue("default", name, QueueSettings())
        for topic in broker.engine.queue_status("default", name).subscriptions:
            broker.engine.remove_queue_subscription("default", name, topic)
        for topic in wider.shape.subscriptions(index):
            broker.engine.add_queue_subscription("default", name, topic)
    await admin.apply(await admin.plan(wider))
    assert (await admin.plan(wider)).is_clean
    (stored,) = await admin.stored_groups()
    assert stored.shape.queue_count == 3


async def test_a_group_that_is_being_re_striped_is_left_alone_and_its_secret_not_shown(broker, client):
    admin = await create(client)
    topic = f"{CONTROL}/restripe/1/2/3/5ec7e7"
    # Told once, however many queues have records of it.
    for index in range(2):
        broker.engine.add_queue_subscription("default", QueueName(f"orders/{index}"), topic)
    plan = await admin.plan(SPEC)
    assert "the group is being re-striped from 2 to 3 queues" in str(plan.problems[0])
    assert plan.steps == ()
    assert "5ec7e7" not in f"{plan_as_object(plan)} {list(plan_lines(plan))}"
    move(broker, 2, 0, 1)
    assert [problem.expected for problem in (await admin.plan(SPEC)).problems] == [
        "`lbg group restripe` to end first",
        "`lbg group restripe`, which moves shards without a loss",
    ]


def move(broker, shard, old, new):
    """What somebody does by hand; None where no queue had it, or none gets it."""
    for index, change in (
        (old, broker.engine.remove_queue_subscription),
        (new, broker.engine.add_queue_subscription),
    ):
        if index is not None:
            change("default", QueueName(f"orders/{index}"), f"orders-hash/{shard}/>")


async def test_shards_that_were_moved_by_hand_go_back_by_hand(broker, client):
    admin = await create(client)
    move(broker, 2, 0, 1)
    move(broker, 0, 0, None)
    move(broker, 3, 1, None)
    plan = await admin.plan(SPEC)
    assert list(map(str, plan.problems)) == [
        "queue orders/1: subscribes to orders-hash/2/>, which belongs to orders/0; expected by hand: publishers "
        "stopped until orders/1 is empty, then the subscription taken from it, then `lbg group apply`",
        "queue orders/0: no subscription orders-hash/0/>, and 1 more like it, and no other queue has it: what is "
        "published there is lost; expected at once and by hand: the subscription added to this queue",
    ]
    move(broker, 2, 1, None)
    await admin.apply(await admin.plan(SPEC))
    assert (await admin.plan(SPEC)).is_clean


async def test_with_another_count_than_is_stored_nobody_is_told_to_move_shards(broker, client):
    admin = await create(client)
    move(broker, 2, 0, 1)
    wider = replace(SPEC, shape=GroupShape(GroupName("orders"), "orders-hash", 5, 3))
    (problem,) = (await admin.plan(wider)).problems
    assert str(problem) == (
        "group.queue_count: 3, and the group on the broker has 2, with orders/1 subscribing to orders-hash/2/>, which "
        "is there by neither number; expected 2, until `lbg group verify` is content with that"
    )


async def test_where_each_shard_lies_as_the_one_count_or_the_other_has_it_no_queue_of_neither_is_told(broker, client):
    """It was said of shards that lie half as before and half as after a re-striping."""
    admin = await create(client)
    wider = replace(SPEC, shape=GroupShape(GroupName("orders"), "orders-hash", 5, 3))
    broker.engine.create_queue("default", QueueName("orders/2"), QueueSettings())
    move(broker, 2, 0, 2)
    (problem,) = (await admin.plan(wider)).problems
    assert str(problem) == (
        "group.queue_count: 3, and the group on the broker has 2, with some shards where the one number has them, and "
        "others where the other has; expected 2, until `lbg group verify` is content with that"
    )


async def test_settings_with_the_number_before_a_re_striping_are_told_the_present_one(client):
    """They were told that a shard was in another's queue, and to re-stripe: back, that is."""
    await create(client, replace(SPEC, shape=GroupShape(GroupName("orders"), "orders-hash", 5, 3)))
    (problem,) = find_problems(SPEC, await read_state(client, "default", SPEC))
    assert (problem.where, problem.found) == ("group.queue_count", "2, and the group on the broker has 3")
    assert problem.expected.startswith("3 in the settings; or `lbg group restripe`")


async def test_a_lost_shard_of_another_count_is_added_where_its_messages_are(client):
    """It was told that shards lay in queues of neither number, or that it belonged where it would be after a
    re-striping: what lies in its old queue would then have been overtaken."""
    wider = replace(SPEC, shape=GroupShape(GroupName("orders"), "orders-hash", 5, 3))
    await create(client, wider)
    state = dict(await read_state(client, "default", SPEC))
    state[marker_ref(SPEC)] = {"physicalName": wider.marker()}
    del state[Ref(ObjectKind.SUBSCRIPTION, "orders-hash/4/>", QueueName("orders/1"))]
    assert list(map(str, find_problems(SPEC, state))) == [
        "group.queue_count: 2, and the group on the broker has 3; expected 3 in the settings; or `lbg group restripe`, "
        "which moves shards without a loss",
        "queue orders/1: no subscription orders-hash/4/>, and no other queue has it: what is published there is lost; "
        "expected at once and by hand: the subscription added to this queue",
    ]


async def test_what_only_a_wildcard_takes_is_no_lost_shard_of_another_count(client):
    """To take the wildcard away, as for a re-striping, would lose everything that is published after it."""
    wider = replace(SPEC, shape=GroupShape(GroupName("orders"), "orders-hash", 5, 3))
    await create(client, wider)
    state = {
        ref: at for ref, at in (await read_state(client, "default", SPEC)).items() if "orders-hash/" not in ref.name
    }
    state[marker_ref(SPEC)] = {"physicalName": wider.marker()}
    state[Ref(ObjectKind.SUBSCRIPTION, "orders-hash/*/>", QueueName("orders/0"))] = {}
    (problem,) = find_problems(SPEC, state)
    assert problem.where == "group.queue_count"


@pytest.mark.parametrize("stored_count", [2, 3])
async def test_of_two_whole_layouts_the_stored_one_is_the_groups(client, stored_count):
    """The smaller one was taken for it, and the shards of the group were to be taken away."""
    shapes = {count: GroupShape(GroupName("orders"), "orders-hash", 5, count) for count in (2, 3, 4)}
    spec = replace(SPEC, shape=shapes[4])
    await create(client, replace(SPEC, shape=shapes[3]))
    state = dict(await read_state(client, "default", spec))
    state[marker_ref(spec)] = {"physicalName": replace(SPEC, shape=shapes[stored_count]).marker()}
    for index in range(2):
        for topic in shapes[2].subscriptions(index):
            state[Ref(ObjectKind.SUBSCRIPTION, topic, QueueName(f"orders/{index}"))] = {}
    (problem,) = find_problems(spec, state)
    assert problem.found.endswith(f", without which the shards lie as for {stored_count} queues")


@pytest.mark.parametrize("stored_count", [2, 3])
@pytest.mark.parametrize("topic", ["orders-hash/1/>", "orders-hash/*/>", "orders*/>"])
async def test_what_keeps_shards_of_another_count_from_being_moved_goes_before_a_restripe(client, stored_count, topic):
    """It refuses until then; for `lbg group apply`, shards that lie as they should would have to be taken away."""
    wider = replace(SPEC, shape=GroupShape(GroupName("orders"), "orders-hash", 5, 3))
    await create(client, wider)
    state = dict(await read_state(client, "default", SPEC))
    state[marker_ref(SPEC)] = {"physicalName": (SPEC if stored_count == 2 else wider).marker()}
    state[Ref(ObjectKind.SUBSCRIPTION, topic, QueueName("orders/0"))] = {}
    (problem,) = find_problems(SPEC, state)
    assert str(problem) == (
        f"queue orders/0: subscribes to {topic}, without which the shards lie as for 3 queues; expected by hand: "
        "publishers stopped until orders/0 is empty, then the subscription taken from it, then `lbg group restripe`, "
        "which moves shards without a loss"
    )
    state[Ref(ObjectKind.SUBSCRIPTION, topic, QueueName("orders/2"))] = {}
    (problem,) = find_problems(SPEC, state)
    assert problem.found == (f"subscribes to {topic}, and 1 more like it, without which the shards lie as for 3 queues")


def shards_in(index, topics):
    return {Ref(ObjectKind.SUBSCRIPTION, topic, QueueName(f"orders/{index}")): {} for topic in topics}


@pytest.mark.parametrize("is_stored", [True, False])
def test_shards_that_all_lie_in_the_first_queue_are_moved_by_a_restripe(is_stored):
    """To take those of other queues away from it, as where they lie in no order, would lose what is published then."""
    state = {marker_ref(SPEC): {"physicalName": SPEC.marker()}} if is_stored else {}
    state |= shards_in(0, [f"orders-hash/{shard}/>" for shard in range(5)])
    (problem,) = find_problems(SPEC, state)
    assert problem.expected == "`lbg group restripe`, which moves shards without a loss"


def test_a_shard_in_the_wrong_queue_of_a_group_without_stored_settings_is_told():
    state = shards_in(0, ["orders-hash/0/>", "orders-hash/1/>", "orders-hash/2/>", "orders-hash/4/>"])
    state |= shards_in(1, ["orders-hash/3/>"])
    assert [problem.found for problem in find_problems(SPEC, state)] == [
        "subscribes to orders-hash/1/>, which belongs to orders/1"
    ]


async def test_a_shard_in_more_queues_than_there_are_shards_is_told(client):
    await create(client)
    state = await read_state(client, "default", SPEC)
    for index in range(2, 9):
        state[Ref(ObjectKind.SUBSCRIPTION, "orders-hash/1/>", QueueName(f"orders/{index}"))] = {}
    (problem,) = find_problems(SPEC, state)
    assert problem.found == "subscribes to orders-hash/1/>, which belongs to orders/1, and 6 more like it"
    assert "by hand" in problem.expected


@pytest.mark.parametrize(
    "topic",
    ["orders-hash/*/>", ">", "*/>", "orders*/>", "orders-hash/2*/new", "orders-hash/>", "orders-hash/2/new"],
)
async def test_what_takes_messages_of_shards_of_other_queues_is_taken_away_by_hand(broker, client, topic):
    """What lies in the queue would be handled after what is published once the shards are in their own."""
    admin = await create(client)
    broker.engine.add_queue_subscription("default", QueueName("orders/1"), topic)
    plan = await admin.plan(SPEC)
    assert list(map(str, plan.problems)) == [
        f"queue orders/1: subscribes to {topic}, which takes shards that belong to other queues; expected by hand: "
        "publishers stopped until orders/1 is empty, then the subscription taken from it, then `lbg group apply`"
    ]
    with pytest.raises(GroupRefused):
        await admin.apply(plan)
    broker.engine.remove_queue_subscription("default", QueueName("orders/1"), topic)
    assert (await admin.plan(SPEC)).is_clean


@pytest.mark.parametrize("part", ["orders-hash/*/new", "orders-hash/*/*"])
async def test_a_shard_that_only_a_wildcard_takes_is_not_lost(broker, client, part):
    admin = await create(client)
    move(broker, 0, 0, None)
    broker.engine.add_queue_subscription("default", QueueName("orders/1"), "orders-hash/*/>")
    assert [problem.where for problem in (await admin.plan(SPEC)).problems] == ["queue orders/1"]
    broker.engine.remove_queue_subscription("default", QueueName("orders/1"), "orders-hash/*/>")
    broker.engine.add_queue_subscription("default", QueueName("orders/1"), part)
    assert [problem.where for problem in (await admin.plan(SPEC)).problems] == ["queue orders/1", "queue orders/0"]


@pytest.mark.parametrize(
    "topic",
    ["orders-hash/1/new", "orders-hash/1*/>", "others/*/>", "orders-hash/*", "orders-hash/9/>", "order/>"],
)
async def test_a_subscription_to_no_shard_of_another_queue_is_a_mere_surplus(broker, client, topic):
    admin = await create(client)
    broker.engine.add_queue_subscription("default", QueueName("orders/1"), topic)
    await admin.apply(await admin.plan(SPEC))
    assert (await admin.plan(SPEC)).is_clean
    assert topic not in broker.engine.queue_status("default", QueueName("orders/1")).subscriptions


async def test_a_partitioned_queue_keeps_no_order_and_is_emptied_first(client):
    spec, state = SPEC, await read_state(client, "default", SPEC)
    state[Ref(ObjectKind.QUEUE, "orders/0")] = {"partitionCount": 4}
    (problem,) = find_problems(spec, state)
    assert "a partitioned queue; expected one without partitions" in str(problem)
    assert "publishers stopped until it is empty" in problem.expected


async def test_what_mqtt_clients_may_do_is_no_business_of_the_group(client):
    """It would have been removed under a name that it does not have, again and again."""
    admin = await create(client)
    rule = {"publishTopicExceptionSyntax": "mqtt", "publishTopicException": "theirs/#"}
    await client.create(("msgVpns", "default", "aclProfiles", "lbg-orders", "publishTopicExceptions"), rule)
    assert (await admin.plan(SPEC)).is_clean


@pytest.mark.parametrize("enabled", [True, False])
async def test_somebody_elses_username_is_not_taken_over(client, enabled):
    await client.create(("msgVpns", "default", "clientUsernames"), {"clientUsername": "members", "enabled": enabled})
    plan = await GroupAdmin(client, "default").plan(SPEC)
    assert [problem.where for problem in plan.problems] == ["client username members"]


async def test_somebody_elses_settings_are_not_overwritten(client):
    entry = {"queueName": "lbg/orders", "physicalName": "their/queue"}
    await client.create(("msgVpns", "default", "jndiQueues"), entry)
    admin = GroupAdmin(client, "default")
    assert [problem.where for problem in (await admin.plan(SPEC)).problems] == [str(marker_ref(SPEC))]
    assert await admin.stored_groups() == []


DEAD = QueueName("#DEAD_MSG_QUEUE")


@pytest.mark.parametrize(
    ("unfit", "found"),
    [
        ({"rejectMsgToSenderOnDiscardBehavior": "never"}, "rejectMsgToSenderOnDiscardBehavior never: "),
        ({"rejectMsgToSenderOnDiscardBehavior": "when-queue-enabled"}, "rejectMsgToSenderOnDiscardBehavior when-queue"),
        ({"ingressEnabled": False}, "ingressEnabled False: "),
    ],
)
async def test_a_dead_message_queue_that_may_lose_what_is_moved_there_is_told_and_left(client, unfit, found):
    spec = replace(SPEC, borrowed=(DEAD,))
    admin = await create(client, spec)
    fit = {"queueName": DEAD, "ingressEnabled": True, "rejectMsgToSenderOnDiscardBehavior": "always"}
    await client.create(("msgVpns", "default", "queues"), fit)
    assert (await admin.plan(spec)).is_clean
    await client.update(("msgVpns", "default", "queues", DEAD), unfit)
    plan = await admin.plan(spec)
    assert (plan.steps, plan.problems, plan.is_clean) == ((), (), False)
    assert [(each.where, each.found.startswith(found)) for each in plan.remarks] == [(f"queue {DEAD}", True)]
    assert plan_as_object(plan)["remarks"][0]["where"] == f"queue {DEAD}"
    assert next(iter(plan_lines(plan))).startswith(f"? queue {DEAD}: {found}")
    await admin.apply(plan)
    await admin.delete(spec)
    assert (await client.get(SempApi.CONFIG, ("msgVpns", "default", "queues", DEAD))).attributes["queueName"] == DEAD


def test_a_dead_message_queue_of_a_broker_without_such_an_attribute_is_fit():
    there = {"queueName": DEAD, "ingressEnabled": True}
    assert list(find_unfit({DEAD: there})) == []


async def test_a_dead_message_queue_that_is_missing_is_told(client):
    spec = replace(SPEC, borrowed=(DEAD,))
    admin = await create(client, spec)
    assert [str(each) for each in (await admin.plan(spec)).remarks] == [
        "queue #DEAD_MSG_QUEUE: is missing, and members move messages to it; expected one that exists"
    ]
    assert (await admin.plan(SPEC)).is_clean


@pytest.mark.parametrize("after_a_step", [False, True])
async def test_a_plan_that_has_stood_still_is_not_carried_on(broker, client, after_a_step):
    """By then its shards may have been moved, and it would subscribe one to a second queue."""
    await create(client)
    queue = ("msgVpns", "default", "queues", "orders/0")
    for each in await client.find_all(SempApi.CONFIG, (*queue, "subscriptions")):
        await client.delete((*queue, "subscriptions", each.text("subscriptionTopic")))
    now_s, taken = 0.0, []

    def stop(step):
        nonlocal now_s
        taken.append(step)
        now_s += PLAN_COUNTS_S + 1 if len(taken) > after_a_step else PLAN_COUNTS_S

    admin = GroupAdmin(client, "default", lambda: now_s)
    with pytest.raises(PlanOutdated, match=r"stood still for 31 s.* expected the same command again"):
        await admin.apply(await admin.plan(SPEC), stop)
    subscriptions = await client.find_all(SempApi.CONFIG, (*queue, "subscriptions"))
    assert len(subscriptions) == after_a_step
    await admin.apply(await admin.plan(SPEC))
    assert (await admin.plan(SPEC)).is_clean
