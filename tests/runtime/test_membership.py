"""Which member a process is."""

import pytest

from lbg_runtime.config.settings import MembershipSettings
from lbg_runtime.core.roles import CountedPlace
from lbg_runtime.model.errors import ConfigError
from lbg_runtime.runtime.membership import find_membership


def _find(settings=None, environ=None, host="host", queues=8, **arguments):
    found = MembershipSettings.model_validate({"mode": "static"} | (settings or {}))
    return find_membership(found, queues, environ or {}, host, 4711, **arguments)


@pytest.mark.parametrize(
    ("settings", "environ", "host", "member"),
    [
        ({}, {}, "host", "host-4711"),
        ({"id": "till-1"}, {}, "host", "till-1"),
        ({"id": "till-1"}, {"LBG_MEMBER_ID": "till-2"}, "host", "till-2"),
        ({}, {}, "h" * 300, "h" * 90 + "-4711"),
    ],
)
def test_a_member_that_is_not_counted_has_a_name(settings, environ, host, member):
    membership = _find({"mode": "discovered", **settings}, environ, host)
    assert (membership.member, membership.place) == (member, None)


def test_the_settings_say_it():
    membership = _find({"index": 2, "count": 4})
    assert (membership.place, membership.member) == (CountedPlace(2, 4), "member-2")


def test_the_environment_wins_over_the_settings_and_arguments_over_both():
    environ = {"LBG_MEMBER_INDEX": "1", "LBG_MEMBER_COUNT": "5"}
    assert _find({"index": 2, "count": 4}, environ).place == CountedPlace(1, 5)
    membership = _find({"index": 2, "count": 4}, environ, index=0, count=3)
    assert membership.place == CountedPlace(0, 3)


def test_an_ordinal_is_read_from_the_host_name():
    assert _find({"mode": "ordinal", "count": 4}, host="orders-3").place.index == 3
    assert _find({"mode": "ordinal", "count": 4}, host="my-orders-0.svc.example-9").place.index == 0


def test_a_number_that_is_given_wins_over_that_of_the_host_name():
    assert _find({"mode": "ordinal", "count": 4}, {"LBG_MEMBER_INDEX": "1"}, host="orders-3").place.index == 1


def test_there_may_be_as_many_members_as_queues():
    assert _find({"index": 7, "count": 8}).place == CountedPlace(7, 8)


@pytest.mark.parametrize(
    ("settings", "environ", "host", "text"),
    [
        ({"count": 4}, {}, "orders-3", "membership.index: not set"),
        ({"index": 0}, {}, "h", "membership.count: not set"),
        ({"index": 4, "count": 4}, {}, "h", "membership.index: 4; expected 0 to 3"),
        ({"index": 0, "count": 9}, {}, "h", "membership.count: 9 members for 8 queues"),
        ({"mode": "ordinal", "count": 4}, {}, "orders", "membership.mode: host name 'orders'"),
        ({"mode": "discovered"}, {"LBG_MEMBER_INDEX": "1"}, "h", "membership.mode: discovered, and a member's index"),
        ({"mode": "discovered"}, {"LBG_MEMBER_COUNT": "4"}, "h", "membership.mode: discovered, and a member's index"),
        ({"mode": "discovered"}, {"LBG_MEMBER_ID": "a b"}, "h", "environment LBG_MEMBER_ID: 'a b'; expected 1 to 100"),
        ({"count": 4}, {"LBG_MEMBER_INDEX": "x"}, "h", "environment LBG_MEMBER_INDEX: 'x'; expected a whole number"),
        ({"count": 4}, {"LBG_MEMBER_INDEX": "9" * 5_000}, "h", "environment LBG_MEMBER_INDEX: '99"),
    ],
)
def test_what_cannot_be_is_one_line(settings, environ, host, text):
    with pytest.raises(ConfigError) as caught:
        _find(settings, environ, host)
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize("mode", ["static", "ordinal"])
def test_a_counted_member_is_given_no_name(mode):
    with pytest.raises(ConfigError, match=f"membership.mode: {mode}, and a member's id is given; expected discovered"):
        _find({"mode": mode, "index": 0, "count": 4}, member_id="till-1")
