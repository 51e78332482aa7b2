"""Administrators who cannot be right: told why in one line, and nothing on the broker is another afterwards."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import httpx
import pytest

from lbg_runtime.admin.group import GroupAdmin
from lbg_runtime.admin.roles import Login, Role
from lbg_runtime.model.errors import LbgError, SempRefused, SempUnreachable
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import GroupName
from lbg_runtime.semp.client import SempAccount, SempClient
from tests.admin.group_steps import SPEC, create, everything


async def _create(admin: GroupAdmin) -> None:
    await admin.create(await admin.plan(SPEC, is_new=True))


async def _apply(admin: GroupAdmin) -> None:
    await admin.apply(await admin.plan(SPEC))


async def _delete(admin: GroupAdmin) -> None:
    await admin.delete(SPEC, force=True)


async def _list(admin: GroupAdmin) -> None:
    await admin.stored_groups()


Act = Callable[[GroupAdmin], Awaitable[None]]
ACTS = [_create, _apply, _delete, _list]


def one_line(error: BaseException) -> str:
    text = str(error)
    assert "\n" not in text
    assert "secret" not in text
    return text


@pytest.mark.parametrize("act", ACTS)
async def test_a_vpn_that_is_not_there(client: SempClient, act: Act) -> None:
    before = await everything(client)
    with pytest.raises(LbgError, match="elsewhere") as caught:
        await act(GroupAdmin(client, "elsewhere"))
    assert "message VPN" in one_line(caught.value)
    assert await everything(client) == before


@pytest.mark.parametrize("act", ACTS)
async def test_a_wrong_password(broker, client: SempClient, act: Act) -> None:
    before = await everything(client)
    async with SempClient(SempAccount("http://broker", "admin", "secret"), transport=broker.transport) as other:
        with pytest.raises(SempRefused, match=r"semp\.username or semp\.password refused") as caught:
            await act(GroupAdmin(other, "default"))
    one_line(caught.value)
    assert await everything(client) == before


@pytest.mark.parametrize("act", ACTS)
async def test_a_broker_in_standby_is_waited_for_and_given_up(act: Act) -> None:
    asked: list[str] = []

    def standby(request: httpx.Request) -> httpx.Response:
        asked.append(request.method)
        return httpx.Response(503)

    async with SempClient(
        SempAccount("http://broker", "a", "secret"), transport=httpx.MockTransport(standby)
    ) as client:
        with pytest.raises(SempUnreachable, match="HTTP 503") as caught:
            await act(GroupAdmin(client, "default"))
    one_line(caught.value)
    assert set(asked) == {"GET"}


@pytest.mark.parametrize(
    "usernames",
    [
        {Role.MEMBER: "m" * 190},
        {Role.PUBLISHER: "p" * 190},
        {Role.PUBLISHER: "members"},
        {Role.PUBLISHER: "default"},
        {Role.MEMBER: "default", Role.PUBLISHER: "publishers"},
        {Role.PUBLISHER: "same", Role.CONDUCTOR: "same"},
        {Role.PUBLISHER: "p" * 100, Role.CONDUCTOR: "c" * 100},
    ],
)
def test_usernames_that_are_too_long_or_taken_are_refused_before_anybody_is_asked(usernames: dict[Role, str]) -> None:
    accounts = {**SPEC.accounts, **{role: Login(username, "secret") for role, username in usernames.items()}}
    with pytest.raises(LbgError) as caught:
        replace(SPEC, accounts=accounts)
    assert "expected" in one_line(caught.value)


def test_a_hash_prefix_that_is_too_long_is_refused_before_anybody_is_asked() -> None:
    with pytest.raises(LbgError) as caught:
        replace(SPEC, shape=GroupShape(GroupName("orders"), "h" * 250, 4, 2))
    assert "expected" in one_line(caught.value)


async def test_a_half_made_group_is_no_group_to_start_from(client: SempClient) -> None:
    """What a killed creation has left has no stored settings, which come when all queues are in use."""
    await create(client)
    await client.delete(("msgVpns", "default", "jndiQueues", "lbg/orders"))
    await client.update(("msgVpns", "default", "clientUsernames", "members"), {"enabled": False})
    admin = GroupAdmin(client, "default")
    assert await admin.stored_groups() == []
    before = await everything(client)
    with pytest.raises(LbgError, match="exists already"):
        await _create(admin)
    assert await everything(client) == before
    await _apply(admin)
    assert [group.shape for group in await admin.stored_groups()] == [SPEC.shape]


@pytest.mark.parametrize("kind", ["jndiQueues", "clientUsernames"])
async def test_what_apply_would_not_take_over_either_is_refused_without_that_advice(
    client: SempClient, kind: str
) -> None:
    foreign = {
        "jndiQueues": {"queueName": "lbg/orders", "physicalName": "somebody's"},
        "clientUsernames": {"clientUsername": "members", "enabled": True},
    }
    await client.create(("msgVpns", "default", kind), foreign[kind])
    admin = GroupAdmin(client, "default")
    at_a_creation = (await admin.plan(SPEC, is_new=True)).problems
    assert len(at_a_creation) == 1
    assert list(map(str, at_a_creation)) == list(map(str, (await admin.plan(SPEC)).problems))
