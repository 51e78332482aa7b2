"""What the broker's side of a group's members is asked to do."""

import pytest

from lbg_runtime.admin.sight import disconnect
from lbg_runtime.broker.engine.effects import ClientEnded
from lbg_runtime.config.broker_names import client_name

NAMES = (
    "shop/eu/host/17",
    "shop/eu/other/3",
    "shop/eu/x/host/17",
    "shop/eu/host",
    "shop/eu/host/17/more",
    "shop/eu/host/here",
    "shop/eu2/host/17",
)


@pytest.mark.parametrize(
    ("group", "member", "ended"),
    [
        ("shop", "eu", ["shop/eu/host/17", "shop/eu/other/3"]),
        ("shop/eu", "x", ["shop/eu/x/host/17"]),
        ("shop", "eu/x", ["shop/eu/x/host/17"]),  # the command takes no such name of a member
        ("shop", "us", []),
    ],
)
async def test_a_member_is_disconnected_and_none_of_a_group_whose_name_begins_so(broker, client, group, member, ended):
    for name in NAMES:
        broker.engine.connect("default", "default", "", name)
    assert await disconnect(client, "default", group, member) == ended
    assert sum(isinstance(effect, ClientEnded) for effect in broker.effects) == len(ended)


async def test_who_has_the_name_of_the_settings_is_found(broker, client):
    name = client_name("shop", "eu")
    broker.engine.connect("default", "default", "", name)
    assert await disconnect(client, "default", "shop", "eu") == [name]
