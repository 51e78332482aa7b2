"""What observers and conductors understand, and that members of another version are told."""

import orjson
from structlog.testing import capture_logs

from lbg_runtime.core.group.control_codec import CONTROL_VERSION, encode
from lbg_runtime.core.group.control_messages import Header, Leave, Life
from lbg_runtime.model.ids import GroupName, MemberId
from lbg_runtime.runtime.control_reader import ControlReader

LEAVE = Leave(Header(GroupName("orders"), MemberId("a"), Life(1, 2), 3))


def of_version(version: int) -> bytes:
    return orjson.dumps([version, *orjson.loads(encode(LEAVE))[1:]])


def test_what_is_said_in_the_group_is_understood():
    assert ControlReader(GroupName("orders")).understand(encode(LEAVE)) == LEAVE


def test_members_of_another_version_are_told_once():
    reader = ControlReader(GroupName("orders"))
    with capture_logs() as logged:
        assert reader.understand(of_version(CONTROL_VERSION + 1)) is None
        assert reader.understand(of_version(CONTROL_VERSION + 2)) is None
    assert logged == [
        {
            "event": "members_not_understood",
            "log_level": "warning",
            "found": f"version {CONTROL_VERSION + 1}",
            "expected": f"version {CONTROL_VERSION}",
        }
    ]


def test_nothing_is_told_of_other_bytes():
    reader = ControlReader(GroupName("invoices"))
    with capture_logs() as logged:
        assert reader.understand(encode(LEAVE)) is None
        assert reader.understand(b"hello") is None
    assert logged == []
