"""Which member a process is."""

import pytest

from lbg_runtime.config.settings import MembershipSettings
from lbg_runtime.model.errors import ConfigError
from lbg_runtime.runtime.membership import find_membership


def _find(settings=None, environ=None, host="host", queues=8, **arguments):
    return find_membership(MembershipSettings.model_validate(settings or {}), queues, environ or {}, host, **arguments)


def test_the_settings_say_it():
    membership = _find({"index": 2, "count": 4})
    assert (membership.index, membership.count, membership.member) == (2, 4, "member-2")


def test_the_environment_wins_over_the_settings_and_arguments_over_both():
    environ = {"LBG_MEMBER_INDEX": "1", "LBG_MEMBER_COUNT": "5"}
    assert _find({"index": 2, "count": 4}, environ).index == 1
    assert _find({"index": 2, "count": 4}, environ).count == 5
    membership = _find({"index": 2, "count": 4}, environ, index=0, count=3)
    assert (membership.index, membership.count) == (0, 3)


def test_an_ordinal_is_read_from_the_host_name():
    assert _find({"mode": "ordinal", "count": 4}, host="orders-3").index == 3
    assert _find({"mode": "ordinal", "count": 4}, host="my-orders-0.svc.example-9").index == 0


@pytest.mark.parametrize(
    ("settings", "environ", "host", "text"),
    [
        ({"count": 4}, {}, "orders-3", "membership.index: not set"),
        ({"index": 0}, {}, "h", "membership.count: not set"),
        ({"index": 4, "count": 4}, {}, "h", "membership.index: 4; expected 0 to 3"),
        ({"index": 0, "count": 9}, {}, "h", "membership.count: 9 members for 8 queues"),
        ({"mode": "ordinal", "count": 4}, {}, "orders", "membership.mode: host name 'orders'"),
        ({"count": 4}, {"LBG_MEMBER_INDEX": "x"}, "h", "environment LBG_MEMBER_INDEX: 'x'; expected a whole number"),
    ],
)
def test_what_cannot_be_is_one_line(settings, environ, host, text):
    with pytest.raises(ConfigError) as caught:
        _find(settings, environ, host)
    assert str(caught.value).startswith(text)
