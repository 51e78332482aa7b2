"""The plans: simulated on a model of a broker that refuses what PubSub+ refuses."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbg_runtime.admin.objects import NEVER_READ, SWITCHES, ObjectKind, Ref, desired_state, marker_ref, with_limits
from lbg_runtime.admin.plan import Change, Create, Delete, plan_apply, plan_delete, plan_quiet, take_step
from lbg_runtime.admin.problems import find_problems, find_taken_names
from lbg_runtime.admin.roles import Login, Role, Topics
from lbg_runtime.admin.spec import SHARED_USERNAME, GroupSpec
from lbg_runtime.core.parking.records import SHOWN_UNSETTLED, parking_queue
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.hashing import HashFunction
from lbg_runtime.model.ids import GroupName, QueueName

CONTROL = "lbg-control/orders"
QUEUE, SUBSCRIPTION = ObjectKind.QUEUE, ObjectKind.SUBSCRIPTION
USERNAME = ObjectKind.CLIENT_USERNAME


def make_spec(queue_count=3, hash_count=7, username="members", profile=None, others=False):
    accounts = {Role.MEMBER: Login(username, "secret")}
    if others:
        accounts |= {Role.PUBLISHER: Login("publishers", "hush"), Role.CONDUCTOR: Login("conductor", "hush")}
    return GroupSpec(
        shape=GroupShape(GroupName("orders"), "h", hash_count, queue_count),
        hash_function=HashFunction.CRC32,
        key="shard",
        accounts=accounts,
        queue_spool_mb=100,
        client_profile=profile,
        creates_queues=False,
        topics=Topics(CONTROL),
    )


def username_ref(spec):
    return Ref(USERNAME, spec.username)


SPECS = st.builds(
    lambda queues, more, username, profile, others: make_spec(
        queues, queues + more, username, profile, others and username != SHARED_USERNAME
    ),
    st.integers(1, 5),
    st.integers(0, 9),
    st.sampled_from(["members", SHARED_USERNAME]),
    st.sampled_from([None, "existing"]),
    st.booleans(),
)


def world_of(spec):
    """What a VPN has before: a client profile to use."""
    return {Ref(ObjectKind.CLIENT_PROFILE, "existing"): {}} if spec.client_profile and spec.has_account else {}


def done(state, steps):
    after = dict(state)
    for step in steps:
        check(after, step)
        take_step(after, step)
    return after


def check(state, step):
    """What must hold before a step, whatever was interrupted before it."""
    ref = step.ref
    match step:
        case Create():
            assert ref not in state
            assert ref.queue is None or Ref(QUEUE, ref.queue) in state
        case Change():
            assert ref in state
        case Delete():
            assert ref in state
    if ref.kind is USERNAME and isinstance(step, Create | Change):
        attributes = {**state.get(ref, {}), **step.attributes}
        assert Ref(ObjectKind.ACL_PROFILE, attributes["aclProfileName"]) in state
        assert Ref(ObjectKind.CLIENT_PROFILE, attributes["clientProfileName"]) in state
    if isinstance(step, Delete) and ref.kind in (ObjectKind.ACL_PROFILE, ObjectKind.CLIENT_PROFILE):
        assert not any(each.kind is USERNAME for each in state)
    if isinstance(step, Delete) and ref.kind in (USERNAME, QUEUE):
        assert not any(value for name, value in state[ref].items() if name in SWITCHES[ref.kind] and value is True)


def is_as_desired(desired, state):
    return all(
        ref in state
        and all(state[ref].get(name) == value for name, value in attributes.items() if name not in NEVER_READ)
        for ref, attributes in desired.items()
    )


@settings(deadline=None)
@given(SPECS)
def test_a_plan_makes_a_group_and_a_second_one_has_nothing_to_do(spec):
    desired = desired_state(spec)
    state = done(world_of(spec), plan_apply(desired, world_of(spec)))
    assert is_as_desired(desired, state)
    assert plan_apply(desired, state) == ()
    assert not list(find_problems(spec, state))
    assert find_taken_names(spec, {}) is not None


@settings(deadline=None)
@given(SPECS, st.data())
def test_wherever_a_creation_is_killed_the_next_plan_ends_where_it_would_have(spec, data):
    desired, world = desired_state(spec), world_of(spec)
    steps = plan_apply(desired, world)
    state = done(world, steps[: data.draw(st.integers(0, len(steps)))])
    assert not list(find_problems(spec, state))
    assert done(state, plan_apply(desired, state)) == done(world, steps)


@settings(deadline=None)
@given(SPECS, st.data())
def test_wherever_a_deletion_is_killed_the_next_one_leaves_nothing(spec, data):
    desired = desired_state(spec)
    state = done(world_of(spec), plan_apply(desired, world_of(spec)))
    own = {ref: attributes for ref, attributes in state.items() if ref.name != "existing"}
    steps = plan_delete(own)
    cut = data.draw(st.integers(0, len(steps)))
    left = done(state, steps[:cut])
    # An enabled username without stored settings would be taken for somebody else's.
    assert marker_ref(spec) in left or not left.get(username_ref(spec), {}).get("enabled")
    own = {ref: attributes for ref, attributes in left.items() if ref.name != "existing"}
    assert done(left, plan_delete(own)) == world_of(spec)


@settings(deadline=None)
@given(SPECS, st.data())
def test_nothing_is_reachable_before_it_is_whole(spec, data):
    desired, state = desired_state(spec), world_of(spec)
    for step in plan_apply(desired, state):
        take_step(state, step)
        for ref, attributes in state.items():
            if ref.kind is QUEUE and attributes["ingressEnabled"]:
                topics = {each.name for each in state if each.queue == ref.name}
                assert topics == {each.name for each in desired if each.queue == ref.name}
        queues = [attributes for ref, attributes in state.items() if ref.kind is QUEUE]
        if marker_ref(spec) in state:
            assert len(queues) == spec.shape.queue_count
            assert all(attributes["egressEnabled"] for attributes in queues)
        if state.get(username_ref(spec), {}).get("enabled"):
            assert marker_ref(spec) in state


DRIFT = st.sampled_from(
    ["queue gone", "topic gone", "topic added", "switch", "attribute", "marker", "account", "profile gone"]
)


@given(SPECS, st.lists(DRIFT, max_size=6), st.data())
@settings(max_examples=200, deadline=None)
def test_drift_is_mended_and_nothing_else_is_touched(spec, drifts, data):
    desired = desired_state(spec)
    state = {**done(world_of(spec), plan_apply(desired, world_of(spec))), Ref(QUEUE, "others"): {"x": 1}}
    state[Ref(SUBSCRIPTION, "other/>", QueueName("others"))] = {}
    for drift in drifts:
        state = drifted(state, drift, data)
    after = done(state, plan_apply(desired, state))
    assert is_as_desired(desired, after)
    assert plan_apply(desired, after) == ()
    for ref, attributes in state.items():
        if ref not in desired and ref.queue not in [each.name for each in desired]:
            assert after[ref] == attributes
    for ref, attributes in after.items():
        kept = {name: value for name, value in state.get(ref, {}).items() if name not in desired.get(ref, {})}
        assert {name: attributes.get(name) for name in kept} == kept


def drifted(state, drift, data):
    def pick(kind):
        return data.draw(
            st.sampled_from([ref for ref in state if ref.kind is kind and "other" not in ref.name] or [None])
        )

    after = dict(state)
    queue, topic = pick(QUEUE), pick(SUBSCRIPTION)
    match drift:
        case "queue gone" if queue:
            take_step(after, Delete(queue))
        case "topic gone" if topic:
            del after[topic]
        case "topic added" if queue:
            after[Ref(SUBSCRIPTION, data.draw(st.sampled_from([">", "h/99/>", "x"])), QueueName(queue.name))] = {}
        case "switch" if queue:
            after[queue] = {**after[queue], "ingressEnabled": False, "note": 1}
        case "attribute" if queue:
            after[queue] = {**after[queue], "owner": "somebody", "accessType": "non-exclusive"}
        case "marker":
            after = {ref: attributes for ref, attributes in after.items() if ref.kind is not ObjectKind.MARKER}
        case "account" if username := pick(USERNAME):
            after[username] = {**after[username], "enabled": False, "subscriptionManagerEnabled": True}
        case "profile gone" if acl := pick(ObjectKind.ACL_PROFILE):
            after[acl] = {**after[acl], "publishTopicDefaultAction": "disallow"}
        case _:
            pass
    return after


def test_a_change_says_whether_it_interrupts():
    ref = Ref(QUEUE, "orders/0")
    assert Change(ref, {"owner": "a"}, {"owner": "b"}).interrupts
    assert not Change(ref, {"maxMsgSpoolUsage": 1}, {"maxMsgSpoolUsage": 2}).interrupts
    assert Change(Ref(USERNAME, "u"), {"aclProfileName": "a"}, {}).interrupts


def test_a_password_is_set_once_and_never_compared():
    spec = make_spec()
    desired = desired_state(spec)
    (made,) = [step for step in plan_apply(desired, {}) if isinstance(step, Create) and step.ref.kind is USERNAME]
    assert (made.attributes["password"], made.attributes["enabled"]) == ("secret", False)
    state = done({}, plan_apply(desired, {}))
    state[username_ref(spec)] = {name: v for name, v in state[username_ref(spec)].items() if name != "password"}
    assert plan_apply(desired, state) == ()


def test_what_a_broker_is_too_old_for_is_no_difference():
    desired = desired_state(make_spec())
    old = {
        ref: {name: value for name, value in attributes.items() if name != "redeliveryEnabled"}
        for ref, attributes in done({}, plan_apply(desired, {})).items()
    }
    assert plan_apply(desired, old) == ()


def test_what_is_off_already_is_not_switched_off_again():
    assert plan_quiet({Ref(QUEUE, "orders/0"): {"ingressEnabled": False}}) == ()
    assert len(plan_quiet({Ref(QUEUE, "orders/0"): {}})) == 1


def test_a_right_that_the_groups_work_does_not_need_is_taken_back_and_no_other_groups():
    spec = make_spec()
    there = desired_state(spec)
    surplus, others = (
        Ref(ObjectKind.PUBLISH_TOPIC, "more/>", profile=name) for name in (spec.profile_name(Role.MEMBER), "others")
    )
    assert plan_apply(there, {**there, surplus: {}, others: {}}) == (Delete(surplus),)


@pytest.mark.parametrize(
    ("there", "raised"),
    [
        ({"maxMsgSpoolUsage": 99, "maxBindCount": 3}, {"maxMsgSpoolUsage": 100}),
        ({"maxMsgSpoolUsage": 100, "maxBindCount": 2}, {"maxBindCount": 3}),
        ({"maxMsgSpoolUsage": 5_000, "maxBindCount": 1_000}, {}),
        # A broker without the limit.
        ({"maxMsgSpoolUsage": 5_000}, {}),
    ],
)
def test_a_limit_of_a_queue_that_is_too_low_is_raised_and_a_higher_one_left(there, raised):
    spec = replace(make_spec(), binds=3)
    desired, queue = desired_state(spec), Ref(QUEUE, "orders/1")
    actual = {**desired, queue: {**desired[queue], **there}}
    steps = plan_apply(with_limits(desired, actual, spec), actual)
    assert steps == ((Change(queue, raised, {name: there[name] for name in raised}),) if raised else ())


def test_a_queue_is_the_groups_alone_or_everybodys_keeps_its_order_and_subscribes_to_its_shards():
    errors = QueueName("lbg-errors/orders")
    for username, permission in (("members", "no-access"), (SHARED_USERNAME, "consume")):
        desired = desired_state(replace(make_spec(2, 3, username), aside=(errors,)))
        queues = [ref for ref in desired if ref.kind is QUEUE]
        assert [ref.name for ref in queues] == [errors, "orders/1", "orders/0"]
        assert {desired[ref]["permission"] for ref in queues} == {permission}
        assert ["respectTtlEnabled" in desired[ref] for ref in queues] == [False, True, True]
        assert {(ref.queue, ref.name) for ref in desired if ref.kind is SUBSCRIPTION} == {
            (errors, errors),
            ("orders/0", "h/0/>"),
            ("orders/0", "h/2/>"),
            ("orders/1", "h/1/>"),
        }
        limits = with_limits(desired, {ref: {"maxDeliveredUnackedMsgsPerFlow": 1} for ref in queues}, make_spec(2, 3))
        assert not any("maxDeliveredUnackedMsgsPerFlow" in limits[ref] for ref in queues), "only parking needs that"


def test_the_path_of_a_topic_rule_names_its_syntax():
    rule, marker = Ref(ObjectKind.PUBLISH_TOPIC, "a/>", profile="p"), Ref(ObjectKind.MARKER, "lbg/orders")
    assert rule.path("v") == ("msgVpns", "v", "aclProfiles", "p", "publishTopicExceptions", ("smf", "a/>"))
    assert marker.path("v") == ("msgVpns", "v", "jndiQueues", "lbg/orders")


def test_a_new_queue_is_made_with_a_quota_and_a_parking_queue_has_to_show_all_that_lies_there():
    parking = parking_queue("orders", 0)
    spec = replace(make_spec(), aside=(parking,))
    desired = desired_state(spec)
    made = with_limits(desired, {}, spec)
    for queue in ("orders/0", parking):
        assert made[Ref(QUEUE, queue)]["maxMsgSpoolUsage"] == 100
        assert "maxDeliveredUnackedMsgsPerFlow" not in made[Ref(QUEUE, queue)], "it has that by itself"
    low = {**desired, Ref(QUEUE, parking): {"maxDeliveredUnackedMsgsPerFlow": SHOWN_UNSETTLED - 1}}
    limits = with_limits(desired, low, spec)
    assert limits[Ref(QUEUE, parking)]["maxDeliveredUnackedMsgsPerFlow"] == SHOWN_UNSETTLED
    assert limits[username_ref(spec)] == desired[username_ref(spec)]


@pytest.mark.parametrize(
    ("ref", "shown", "whole"),
    [
        (Ref(QUEUE, "orders/0"), "queue orders/0", None),
        (
            Ref(SUBSCRIPTION, "h/0/>", QueueName("orders/0")),
            "subscription h/0/> of queue orders/0",
            Ref(QUEUE, "orders/0"),
        ),
        (
            Ref(ObjectKind.CONNECT_ADDRESS, "10.0.0.0/8", profile="p"),
            "refused client address 10.0.0.0/8 of ACL profile p",
            Ref(ObjectKind.ACL_PROFILE, "p"),
        ),
    ],
)
def test_an_object_is_named_with_what_it_is_part_of(ref, shown, whole):
    assert (str(ref), ref.whole) == (shown, whole)
