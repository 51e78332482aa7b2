"""What members say to each other, in tests of the machines that say it."""

from collections.abc import Iterable

from lbg_runtime.core.group.control_messages import ControlMessage, Header, Life
from lbg_runtime.core.group.rebalance_events import Say
from lbg_runtime.model.ids import GroupName, MemberId


def header_of(member: MemberId, number: int = 1) -> Header:
    return Header(GroupName("orders"), member, Life(1, 1), number)


def said(outputs: Iterable[object]) -> list[ControlMessage]:
    return [output.message for output in outputs if isinstance(output, Say)]
