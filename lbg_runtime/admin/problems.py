"""What no step may repair, as somebody has to decide. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace

from lbg_runtime.admin.objects import PARTS, Attributes, ObjectKind, Ref, State, desired_state, marker_ref
from lbg_runtime.admin.plan import Step
from lbg_runtime.admin.queues import TAKES_OR_TELLS
from lbg_runtime.admin.roles import Role
from lbg_runtime.admin.spec import USERNAME_SETTINGS, GroupSpec, StoredGroup, read_marker
from lbg_runtime.core.parking.records import PARKING_PREFIX, parking_queue
from lbg_runtime.core.restripe.records import plan_of_topic
from lbg_runtime.model.errors import UserError
from lbg_runtime.model.failure import ERROR_TOPIC_PREFIX
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import QueueName
from lbg_runtime.model.topic import level_matches, matches

_RESTRIPE = "`lbg group restripe`, which moves shards without a loss"


@dataclass(frozen=True, slots=True)
class Rights:
    """What the administrator may do."""

    username: str
    may_write_vpn: bool
    may_write_broker: bool
    """Needed for client profiles."""


def stored_group(spec: GroupSpec, actual: State) -> StoredGroup | None:
    """The group as its stored settings describe it; None if there are none, or none that can be read."""
    marker = marker_ref(spec)
    return read_marker(spec.shape.name, str(actual[marker].get("physicalName"))) if marker in actual else None


def find_problems(spec: GroupSpec, actual: State) -> Iterator[UserError]:
    """Why the broker must not be made to look as desired."""
    stored = stored_group(spec, actual)
    yield from find_foreign_marker(spec, actual)
    if stored is not None:
        yield from _changed_for_good(spec, stored)
    yield from _restriping(actual, spec.topics.control)
    yield from _misplaced_shards(spec, stored, actual)
    for ref, attributes in actual.items():
        if ref.kind is ObjectKind.QUEUE and attributes.get("partitionCount"):
            # Emptied first: what lies there would be handled after what is published to the queues that come instead.
            expected = (
                "one without partitions, which keep no order between them; by hand: publishers stopped until it is "
                "empty, then the queue deleted, then `lbg group apply`"
            )
            yield UserError(str(ref), "a partitioned queue", expected)
    for role, login in spec.logins.items():
        username = Ref(ObjectKind.CLIENT_USERNAME, login.username)
        if username in actual and not is_own_username(spec, role, stored, actual[username]):
            yield UserError(str(username), "exists, and is not known to be the group's", "a name of its own")
    for ref in actual:
        if ref.kind is ObjectKind.CONNECT_ADDRESS:
            # Perhaps they are refused on purpose, so it is not for a step to let these clients in.
            yield UserError(str(ref.whole), f"refuses clients from {ref.name}", "no client connect exceptions")
    profile = spec.client_profile
    if spec.has_account and profile is not None and Ref(ObjectKind.CLIENT_PROFILE, profile) not in actual:
        yield UserError("semp.client_profile", f"no client profile {profile}", "one that exists")


def find_foreign_marker(spec: GroupSpec, actual: State) -> Iterator[UserError]:
    """Stored settings under the group's name that cannot be read: it may be a newer version's group, or nobody's."""
    marker = marker_ref(spec)
    if marker in actual and stored_group(spec, actual) is None:
        yield UserError(str(marker), "something else is stored there", "settings of this version of lbg, or nothing")


def is_own_username(spec: GroupSpec, role: Role, stored: StoredGroup | None, there: Attributes) -> bool:
    """Whether a client username that exists is known to be the group's: stored as such, or left by an interruption.

    A group's username is enabled after its settings are stored, and disabled before they go; it has the group's ACL
    profile all its life.
    """
    if stored is not None and stored.usernames.get(role) == spec.logins[role].username:
        return True
    return not there.get("enabled") and there.get("aclProfileName") == spec.profile_name(role)


def find_taken_names(spec: GroupSpec, actual: State) -> Iterator[UserError]:
    """Names of a new group that are already taken; only one line if there is a whole group of this name."""
    if stored_group(spec, actual) is not None:
        expected = (
            "an unused name; `lbg group verify` compares this one with the settings, `lbg group apply` corrects it"
        )
        yield UserError(f"group {spec.shape.name}", "is there already", expected)
        return
    for ref in desired_state(spec):
        if ref in actual and ref.kind not in PARTS:
            expected = "an unused name; `lbg group apply` takes over what an interrupted create has left"
            yield UserError(str(ref), "exists already", expected)


def find_missing_rights(steps: Iterable[Step], rights: Rights) -> Iterator[UserError]:
    """Why this administrator could not carry the steps out."""
    kinds = {step.ref.kind for step in steps}
    if kinds and not rights.may_write_vpn:
        yield UserError("semp.username", f"{rights.username} may not change the VPN", "an administrator who may")
    elif ObjectKind.CLIENT_PROFILE in kinds and not rights.may_write_broker:
        found = f"not set, and {rights.username} may not change client profiles"
        yield UserError("semp.client_profile", found, "the name of an existing client profile")


def find_unfit(borrowed: Mapping[QueueName, Attributes | None]) -> Iterator[UserError]:
    """What is wrong with queues of others to which members move messages; None for one that is not there."""
    for queue, there in borrowed.items():
        if there is None:
            yield UserError(f"queue {queue}", "is missing, and members move messages to it", "one that exists")
            continue
        # A broker does not act on an attribute that it does not have.
        for name, value in TAKES_OR_TELLS.items():
            if (found := there.get(name, value)) != value:
                found = f"{name} {found}: what members move to it when it is full or closed may be confirmed and lost"
                yield UserError(f"queue {queue}", found, f"{name} {value}, by whoever has the queue")


def find_unread_parking(spec: GroupSpec, actual: State) -> Iterator[UserError]:
    """Parking queues of a group that does not park; nothing if handlers may park all the same.

    A key may have been parked after somebody looked and before the members stopped. No step deletes it, and none may:
    what lies there was confirmed, and comes before whatever else its keys have.
    """
    prefix = f"{PARKING_PREFIX}{spec.shape.name}/"
    there = [ref for ref in actual if ref.kind is ObjectKind.QUEUE and ref.name.startswith(prefix)]
    parks = any(queue.startswith(prefix) for queue in spec.aside)
    if there and spec.is_aside_whole and not parks:
        expected = (
            "none; deleted by hand, after `lbg parked list` has found nothing: otherwise the members are stopped, and "
            "started with `park` until all is replayed"
        )
        yield UserError(
            str(there[0]), f"is there{_and_more(there)}, and nobody parks: no member looks into it", expected
        )


def is_of_restriping(ref: Ref, control_topic: str) -> bool:
    """Whether it subscribes to the records of a re-striping: it is the conductor's, and has a secret in its name."""
    return ref.kind is ObjectKind.SUBSCRIPTION and plan_of_topic(control_topic, ref.name) is not None


def surplus_queues(spec: GroupSpec, actual: State) -> tuple[str, ...]:
    """Queues named like the group's that are not among its queues, nor any that members make for a handler.

    A handler's own `then` may need them where `failure.then` does not, which no setting says.
    """
    group, count = spec.shape.name, spec.shape.queue_count
    of_handlers = [f"{ERROR_TOPIC_PREFIX}{group}", *(parking_queue(group, index) for index in range(count))]
    wanted = {*spec.shape.queue_names(), *of_handlers}
    return tuple(ref.name for ref in actual if ref.kind is ObjectKind.QUEUE and ref.name not in wanted)


def _changed_for_good(spec: GroupSpec, stored: StoredGroup) -> Iterator[UserError]:
    # Publishers and members that know the old value would send keys elsewhere than those that know the new one.
    expected = "the stored value, or a group of another name"
    pairs: tuple[tuple[str, object, object], ...] = (
        ("group.hash_prefix", spec.shape.hash_prefix, stored.shape.hash_prefix),
        ("group.hash_count", spec.shape.hash_count, stored.shape.hash_count),
        ("group.hash_function", spec.hash_function.value, stored.hash_function.value),
        *_accounts(spec, stored),
    )
    for where, wanted, there in pairs:
        if wanted != there:
            yield UserError(where, f"{wanted}, and the group on the broker has {there}", expected)


def _accounts(spec: GroupSpec, stored: StoredGroup) -> Iterator[tuple[str, object, object]]:
    # An account may be added; changing or dropping one would leave the old one behind with all its rights.
    for role, there in stored.usernames.items():
        wanted = spec.accounts.get(role)
        yield USERNAME_SETTINGS[role], None if wanted is None else wanted.username, there


def _restriping(actual: State, control_topic: str) -> Iterator[UserError]:
    for ref in actual:
        if ref.kind is ObjectKind.SUBSCRIPTION and (plan := plan_of_topic(control_topic, ref.name)) is not None:
            found = f"the group is being re-striped from {plan.from_count} to {plan.to_count} queues"
            # Not to which number: if the plan has not begun, the present one ends it as well.
            yield UserError(f"queue {ref.queue}", found, "`lbg group restripe` to end first")
            return


def _misplaced_shards(spec: GroupSpec, stored: StoredGroup | None, actual: State) -> Iterator[UserError]:
    shape = spec.shape
    home = dict(_shards(shape))
    found_homes = {ref: _homes(ref.name, home, shape) for ref in actual if ref.kind is ObjectKind.SUBSCRIPTION}
    placed = [ref for ref, queues in found_homes.items() if queues]
    misplaced = [ref for ref in placed if found_homes[ref] != {ref.queue}]
    if not misplaced:
        return
    first = misplaced[0]
    owners = f"belongs to {home[first.name]}" if first.name in home else "takes shards that belong to other queues"
    found = f"subscribes to {first.name}, which {owners}{_and_more(misplaced)}"
    here = UserError(f"queue {first.queue}", found, _RESTRIPE)
    if any(is_of_restriping(ref, spec.topics.control) for ref in actual):
        yield here
        return
    layout = _layout(shape, stored, placed)
    if layout is not None and layout != shape:
        yield _laid_out_otherwise(shape, layout, stored, placed) or here
        yield from _lost_shards(layout, placed)
    elif stored is not None and stored.shape.queue_count != shape.queue_count:
        # Where the shards belong is not known before the count is.
        yield _between_two_counts(shape, stored.shape, placed)
    else:
        # If the shard were moved while messages of it lie in this queue, later ones would be handled from its own
        # first.
        yield UserError(here.where, found, f"{_by_hand(first)}, then `lbg group apply`")
        yield from _lost_shards(shape, placed)


def _laid_out_otherwise(
    shape: GroupShape, layout: GroupShape, stored: StoredGroup | None, placed: Sequence[Ref]
) -> UserError | None:
    """What is to be done first where the shards lie as for this other number of queues; None if they can be moved."""
    queues, there = dict(_shards(layout)), layout.queue_count
    if surplus := [ref for ref in placed if queues.get(ref.name) != ref.queue]:
        # A re-striping begins only once it is gone. The other shards have to stay where they are until then.
        first = surplus[0]
        found = f"subscribes to {first.name}{_and_more(surplus)}, without which the shards lie as for {there} queues"
        return UserError(f"queue {first.queue}", found, f"{_by_hand(first)}, then {_RESTRIPE}")
    if stored is not None and stored.shape.queue_count == there:
        # The settings still have the number from before a re-striping, most likely, and nothing has to be moved.
        found = f"{shape.queue_count}, and the group on the broker has {there}"
        return UserError("group.queue_count", found, f"{there} in the settings; or {_RESTRIPE}")
    return None


def _between_two_counts(shape: GroupShape, stored: GroupShape, placed: Sequence[Ref]) -> UserError:
    """Some shards lie as for the wanted number of queues, and others as for the stored one, or as for neither."""
    there = stored.queue_count
    counts = {each for layout in (shape, replace(shape, queue_count=there)) for each in _shards(layout)}
    strange = next((ref for ref in placed if (ref.name, ref.queue) not in counts), None)
    how = "some shards where the one number has them, and others where the other has"
    if strange is not None:
        how = f"{strange.queue} subscribing to {strange.name}, which is there by neither number"
    found = f"{shape.queue_count}, and the group on the broker has {there}, with {how}"
    return UserError("group.queue_count", found, f"{there}, until `lbg group verify` is content with that")


def _lost_shards(layout: GroupShape, placed: Sequence[Ref]) -> Iterator[UserError]:
    """The shards that no queue takes. What is published there is confirmed and lost, and the way to the right layout
    may take some time."""
    home, lost = dict(_shards(layout)), _taken_by_none(layout, placed)
    if lost:
        first = min(lost, key=lambda topic: (home[topic], topic))
        found = f"no subscription {first}{_and_more(lost)}, and no other queue has it: what is published there is lost"
        yield UserError(f"queue {home[first]}", found, "at once and by hand: the subscription added to this queue")


def _taken_by_none(shape: GroupShape, placed: Sequence[Ref]) -> set[str]:
    """The subscriptions of the shards of which no queue takes all messages, with wildcards or without."""
    topics, taken = {topic for topic, _ in _shards(shape)}, {ref.name for ref in placed}
    whole = [topic for topic in taken - topics if topic.endswith(">")]
    return {topic for topic in topics - taken if not any(matches(each, topic) for each in whole)}


def _homes(subscription: str, home: Mapping[str, QueueName], shape: GroupShape) -> frozenset[QueueName]:
    """The queues of the shards of which a subscription attracts messages, with wildcards or without."""
    levels = subscription.split("/")
    if levels[-1] == ">":
        # `>` stands for any number of levels, and a hashed topic has at least three.
        levels[-1:] = ["*"] * max(1, 4 - len(levels))
    if len(levels) < 3 or not level_matches(levels[0], shape.hash_prefix):
        return frozenset()
    if not levels[1].endswith("*"):
        topic = f"{shape.hash_prefix}/{levels[1]}/>"
        return frozenset((home[topic],)) if topic in home else frozenset()
    return frozenset(queue for topic, queue in home.items() if level_matches(levels[1], topic.split("/")[1]))


def _shards(shape: GroupShape) -> Iterator[tuple[str, QueueName]]:
    """The subscription of each shard, and its queue."""
    for shard in range(shape.hash_count):
        yield shape.subscription(shard), shape.queue_name(shape.queue_index_of_shard(shard))


def _layout(shape: GroupShape, stored: StoredGroup | None, placed: Sequence[Ref]) -> GroupShape | None:
    """The group with the number of queues for which each shard is in its queue, whatever else they subscribe to.

    If it is so for several, with the number of the settings, or else the stored one, or else the smallest. If it is so
    for none, with the stored one if only shards that no queue takes speak against that. Otherwise None.
    """
    there = {(ref.name, ref.queue) for ref in placed}
    most = min(shape.hash_count, len({queue for _, queue in there}))
    stored_count = shape.queue_count if stored is None else stored.shape.queue_count
    for count in (shape.queue_count, stored_count, *range(1, most + 1)):
        layout = replace(shape, queue_count=count)
        if all(each in there for each in _shards(layout)):
            return layout
    layout, lost = replace(shape, queue_count=stored_count), _taken_by_none(shape, placed)
    return layout if all(each in there or each[0] in lost for each in _shards(layout)) else None


def _and_more(found: Sized) -> str:
    """How many there are besides the one that is named."""
    return f", and {len(found) - 1} more like it" if len(found) > 1 else ""


def _by_hand(ref: Ref) -> str:
    return f"by hand: publishers stopped until {ref.queue} is empty, then the subscription taken from it"
