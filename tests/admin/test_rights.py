"""What an administrator may do whose rights end at the VPN, or who may only look."""

from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from lbg_runtime.admin.group import GroupAdmin
from lbg_runtime.admin.state import read_rights
from lbg_runtime.broker.semp.access import DEFAULT_ADMINISTRATORS
from lbg_runtime.model.errors import GroupRefused
from lbg_runtime.semp.address import SempApi
from tests.admin.conftest import WRITER
from tests.admin.group_steps import SPEC, create, events


async def test_an_administrator_of_the_vpn_needs_a_client_profile_that_exists(broker, client):
    async with broker.operator() as operator:
        with pytest.raises(GroupRefused) as caught:
            await create(operator)
        assert [problem.where for problem in caught.value.problems] == ["semp.client_profile"]
        with pytest.raises(GroupRefused, match="no client profile missing"):
            await create(operator, replace(SPEC, client_profile="missing"))
        spec = replace(SPEC, client_profile="default")
        admin = await create(operator, spec)
        assert (await admin.plan(spec)).is_clean
        assert await admin.delete(spec) == []
    assert [
        each.text("clientProfileName")
        for each in await client.find_all(SempApi.CONFIG, ("msgVpns", "default", "clientProfiles"))
    ] == ["default"]


async def test_an_administrator_of_the_vpn_deletes_all_but_a_client_profile(broker, client):
    await create(client)
    async with broker.operator() as operator:
        kept = await GroupAdmin(operator, "default").delete(SPEC)
    assert [str(ref) for ref in kept] == ["client profile lbg-orders"]
    assert broker.engine.queue_names("default") == ()


async def test_who_may_not_write_is_told_before_the_first_write(broker, client):
    async with broker.watcher() as watcher:
        with pytest.raises(GroupRefused, match="may not change the VPN"):
            await create(watcher)
        await create(client)
        with capture_logs() as told, pytest.raises(GroupRefused, match="may not change the VPN"):
            await GroupAdmin(watcher, "default").delete(SPEC, force=True)
        assert not events(told)
        rights = await read_rights(watcher, "default")
        assert (rights.may_write_vpn, rights.may_write_broker) == (False, False)
    async with broker.operator() as operator:
        assert not (await read_rights(operator, "elsewhere")).may_write_vpn


async def test_who_may_not_write_may_look_and_finds_nothing_wrong(broker, client):
    await create(client)
    async with broker.watcher() as watcher:
        assert (await GroupAdmin(watcher, "default").plan(SPEC)).is_clean


@pytest.mark.parametrize("administrator", [*DEFAULT_ADMINISTRATORS, WRITER])
async def test_whoever_may_write_to_the_broker_may_write_to_each_of_its_vpns(broker, administrator):
    async with broker.client(administrator) as writer:
        rights = await read_rights(writer, "default")
    assert (rights.may_write_vpn, rights.may_write_broker) == (True, True)
