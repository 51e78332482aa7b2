"""What observers and conductors understand, and that members of another version are told."""

import orjson
from structlog.testing import capture_logs

from lbg_runtime.core.group.control_codec import CONTROL_VERSION, encode
from lbg_runtime.core.group.control_messages import Header, Leave, Life
from lbg_runtime.core.group.membership_timing import MembershipTiming
from lbg_runtime.model.ids import GroupName, MemberId
from lbg_runtime.runtime.control_reader import ControlReader

TIMING = MembershipTiming()
LEAVE = Leave(Header(GroupName("orders"), MemberId("a"), Life(1, 2), 3))


def reader_of(group: str) -> ControlReader:
    return ControlReader(GroupName(group), TIMING)


def of_version(version: int) -> bytes:
    return orjson.dumps([version, *orjson.loads(encode(LEAVE))[1:]])


def test_what_is_said_in_the_group_is_understood():
    assert reader_of("orders").understand(encode(LEAVE), 0) == LEAVE


def test_members_of_another_version_are_told_once():
    reader = reader_of("orders")
    with capture_logs() as logged:
        assert reader.understand(of_version(CONTROL_VERSION + 1), 0) is None
        assert reader.understand(of_version(CONTROL_VERSION + 2), 1) is None
    assert logged == [
        {
            "event": "members_not_understood",
            "log_level": "warning",
            "found": f"version {CONTROL_VERSION + 1}",
            "expected": f"version {CONTROL_VERSION}",
        }
    ]


def test_another_version_is_known_until_who_spoke_it_would_be_dead():
    reader = reader_of("orders")
    assert reader.other_version(0) is None
    for heard_ms in (100, 900):
        reader.understand(of_version(CONTROL_VERSION - 1), heard_ms)
    reader.understand(encode(LEAVE), 901)
    other = reader.other_version(900 + TIMING.dead_ms - 1)
    assert other is not None
    assert (other.found, other.heard_ms) == (f"version {CONTROL_VERSION - 1}", 900)
    assert str(other) == (
        f"members are not understood: they speak control messages of version {CONTROL_VERSION - 1}, "
        f"expected version {CONTROL_VERSION}"
    )
    assert reader.other_version(900 + TIMING.dead_ms) is None


def test_nothing_is_told_of_other_bytes():
    reader = reader_of("invoices")
    with capture_logs() as logged:
        assert reader.understand(encode(LEAVE), 0) is None
        assert reader.understand(b"hello", 0) is None
    assert logged == []
    assert reader.other_version(0) is None
