"""`lbg why`: what it says of a key that nobody has, and its exit codes. A key that a real member has is in
`tests/cli/group/test_commands.py`."""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from lbg_runtime.cli.main import command_line
from lbg_runtime.core.group.control_messages import (
    FlowReport,
    Header,
    KeyAnswer,
    KeySight,
    LastHandled,
    Life,
    ParkingWait,
    QuestionId,
    ReportedFlow,
)
from lbg_runtime.core.group.picture import GroupPicture
from lbg_runtime.model.errors import SubscribeFailed
from lbg_runtime.model.hashing import HashFunction, shard_of
from lbg_runtime.model.ids import Epoch, GroupName, MemberId, QueueName

app = command_line()

STANDBY = KeyAnswer(
    Header(GroupName("orders"), MemberId("a"), Life(1, 1), 1),
    QuestionId("q"),
    shard_of(HashFunction.CRC32, "k", 8),
    QueueName("orders/1"),
    None,
    KeySight(0, 0, None, None),
)
OWNER = replace(STANDBY, flow=FlowReport(ReportedFlow.ACTIVE, Epoch(3), 0))
KNOWN = KeySight(0, 0, None, LastHandled(17, 1, 250))


class Heard:
    """An observer that has these answers; who answers is alive."""

    def __init__(self, answers: Sequence[KeyAnswer]) -> None:
        self._answers = answers

    async def look_for_key(self, key: str, within_s: float) -> tuple[Sequence[KeyAnswer], GroupPicture]:
        return self._answers, GroupPicture()


@pytest.fixture
def why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Heard], Result]:
    """Asks an observer about the key k."""
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"group": {"name": "orders", "hash_prefix": "h", "hash_count": 8, "queue_count": 2}}))

    def ask(observer: Heard) -> Result:
        @asynccontextmanager
        async def observing(_: object) -> AsyncIterator[Heard]:
            yield observer

        monkeypatch.setattr("lbg_runtime.runtime.observer.observing", observing)
        return CliRunner().invoke(app, ["why", "k", "--config", str(config), "--for", "5ms"], catch_exceptions=False)

    return ask


@pytest.mark.parametrize(
    ("answers", "code", "remark"),
    [
        pytest.param([replace(OWNER, sight=KNOWN)], 0, "", id="known"),
        pytest.param(
            [OWNER], 1, "lbg: its owner has no message of key k, and has not handled one lately\n", id="not known"
        ),
        pytest.param(
            [replace(STANDBY, sight=KNOWN)],
            1,
            "lbg: queue orders/1 has no owner among a: no member that was heard is bound to it\n",
            id="nobody is bound",
        ),
        pytest.param(
            [replace(STANDBY, sight=KNOWN), replace(STANDBY, flow=FlowReport(ReportedFlow.STANDBY, Epoch(3), 0))],
            1,
            "lbg: queue orders/1 has no owner among a: bound as standby: a; none says that the broker feeds it\n",
            id="nobody is fed",
        ),
        pytest.param(
            [replace(OWNER, sight=KNOWN, wait=ParkingWait(1_500, "it is not there"))],
            1,
            "lbg: orders/1 waits for its parking queue; if no command is named above, try `lbg group verify`\n",
            id="waits for its parking queue",
        ),
        pytest.param([], 3, "lbg: nobody on lbg-control/orders answered within 5 ms\n", id="nobody"),
    ],
)
def test_the_exit_code_is_0_only_if_the_owner_knows_the_key(
    why: Callable[[Heard], Result], answers: Sequence[KeyAnswer], code: int, remark: str
) -> None:
    done = why(Heard(answers))

    assert (done.exit_code, done.stderr) == (code, remark)


class Refused(Heard):
    """One that the broker does not let hear anything."""

    async def look_for_key(self, key: str, within_s: float) -> tuple[Sequence[KeyAnswer], GroupPicture]:
        raise SubscribeFailed("lbg-control/orders", "Subscription ACL Denied", permanent=True)


def test_who_may_not_ask_is_not_told_that_the_owner_does_not_know_the_key(why: Callable[[Heard], Result]) -> None:
    done = why(Refused([]))

    assert (done.exit_code, done.stdout) == (3, "")
    assert done.stderr == "lbg: cannot subscribe to lbg-control/orders: Subscription ACL Denied\n"
