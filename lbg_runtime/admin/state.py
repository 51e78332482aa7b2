"""What exists of a group on the broker."""

from lbg_runtime.admin.objects import (
    KEY_NAMES,
    SYNTAX,
    TOPIC_RULES,
    Attributes,
    ObjectKind,
    Ref,
    account_refs,
    marker_ref,
)
from lbg_runtime.admin.problems import Rights
from lbg_runtime.admin.spec import MARKER_PREFIX, GroupSpec, StoredGroup, read_marker
from lbg_runtime.core.parking.records import PARKING_PREFIX
from lbg_runtime.model.failure import ERROR_TOPIC_PREFIX
from lbg_runtime.model.group import queue_index
from lbg_runtime.model.ids import QueueName
from lbg_runtime.semp.address import SempApi
from lbg_runtime.semp.answer import SempObject
from lbg_runtime.semp.client import SempClient


async def read_state(client: SempClient, vpn: str, spec: GroupSpec) -> dict[Ref, Attributes]:
    """Every object that has one of the group's names, with its attributes; raises `SempError`."""
    state: dict[Ref, Attributes] = {}
    for ref in (marker_ref(spec), *account_refs(spec)):
        found = await read_object(client, vpn, ref)
        if found is not None:
            state[ref] = found.attributes
            if ref.kind is ObjectKind.ACL_PROFILE:
                state |= await _rules(client, vpn, ref)
    group = spec.shape.name
    queues = await _queues_of(client, vpn, group) | await _queues_of(client, vpn, f"{PARKING_PREFIX}{group}")
    errors = await read_object(client, vpn, Ref(ObjectKind.QUEUE, f"{ERROR_TOPIC_PREFIX}{group}"))
    if errors is not None:
        queues[QueueName(errors.text("queueName"))] = errors
    state |= {Ref(ObjectKind.QUEUE, queue): found.attributes for queue, found in queues.items()}
    for queue in queues:
        path = (*Ref(ObjectKind.QUEUE, queue).path(vpn), ObjectKind.SUBSCRIPTION.value)
        for topic in await client.find_all(SempApi.CONFIG, path):
            state[Ref(ObjectKind.SUBSCRIPTION, topic.text("subscriptionTopic"), queue)] = {}
    return state


async def read_groups(client: SempClient, vpn: str) -> list[StoredGroup]:
    """Every group whose settings are stored in the VPN, by name; other entries are passed over. Raises `SempError`."""
    found = await client.find_all(
        SempApi.CONFIG, ("msgVpns", vpn, ObjectKind.MARKER.value), where=(f"queueName=={MARKER_PREFIX}*",)
    )
    # An entry may appear twice if entries come and go between two pages.
    texts = {each.text("queueName").removeprefix(MARKER_PREFIX): each.text("physicalName") for each in found}
    groups = (read_marker(name, texts[name]) for name in sorted(texts))
    return [group for group in groups if group is not None]


async def read_stored(client: SempClient, vpn: str, group: str) -> str | None:
    """The stored settings of one group, as they are written; None if there are none. Raises `SempError`."""
    found = await read_object(client, vpn, Ref(ObjectKind.MARKER, MARKER_PREFIX + group))
    return None if found is None else found.text("physicalName")


async def read_group(client: SempClient, vpn: str, group: str) -> StoredGroup | None:
    """One group as its stored settings describe it; None if there are none, or none of this version. Raises
    `SempError`."""
    text = await read_stored(client, vpn, group)
    return None if text is None else read_marker(group, text)


async def read_rights(client: SempClient, vpn: str) -> Rights:
    """What the administrator may do in the VPN and in the broker; raises `SempError`."""
    user = await client.get(SempApi.CONFIG, ("about", "user"))
    in_vpn = await client.find(SempApi.CONFIG, ("about", "user", "msgVpns", vpn))
    level = "none" if in_vpn is None else in_vpn.text("accessLevel")
    may_write_broker = user.text("globalAccessLevel") in ("read-write", "admin")
    return Rights(user.text("username"), may_write_broker or level == "read-write", may_write_broker)


async def read_object(client: SempClient, vpn: str, ref: Ref) -> SempObject | None:
    """One object as it is configured; None if it does not exist. Raises `SempError`."""
    return await client.find(SempApi.CONFIG, ref.path(vpn))


async def _rules(client: SempClient, vpn: str, profile: Ref) -> dict[Ref, Attributes]:
    """The parts of an ACL profile."""
    rules: dict[Ref, Attributes] = {}
    for kind in (*TOPIC_RULES, ObjectKind.CONNECT_ADDRESS):
        key = KEY_NAMES[kind]
        for each in await client.find_all(SempApi.CONFIG, (*profile.path(vpn), kind.value)):
            if kind not in TOPIC_RULES or each.text(f"{key}Syntax") == SYNTAX:
                rules[Ref(kind, each.text(key), profile=profile.name)] = {}
    return rules


async def _queues_of(client: SempClient, vpn: str, group: str) -> dict[QueueName, SempObject]:
    """Queues named as those of this group are, in the order of their indexes, however many there should be."""
    found = await client.find_all(
        SempApi.CONFIG, ("msgVpns", vpn, ObjectKind.QUEUE.value), where=(f"{KEY_NAMES[ObjectKind.QUEUE]}=={group}/*",)
    )
    by_index: dict[int, SempObject] = {}
    for each in found:
        index = queue_index(group, each.text("queueName"))
        if index is not None:
            by_index[index] = each
    return {QueueName(f"{group}/{index}"): by_index[index] for index in sorted(by_index)}
