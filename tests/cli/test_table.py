"""Tables show all that is in them, wherever they are printed."""

import re

import pytest

from lbg_runtime.admin.sight import QueueSight
from lbg_runtime.cli.group.plan_text import sights_as_table
from lbg_runtime.cli.table import print_table
from lbg_runtime.model.ids import QueueName


def test_nobody_can_choose_a_name_that_the_terminal_obeys(capsys: pytest.CaptureFixture[str]) -> None:
    queue = QueueName("g[/x]/0")
    print_table(sights_as_table([queue], {queue: QueueSight(1, 1, "[red]\x1b[2J:boom:")}, 0))
    told = capsys.readouterr().out
    assert "[red]\\x1b[2J:boom:" in told
    assert "g[/x]/0" in told


@pytest.mark.parametrize("width", [20, 40, 80])
def test_a_table_in_a_narrow_terminal_cuts_no_name_and_no_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    """All queues had the same name in it, as their indexes were cut, and of 123456 messages it showed 12."""
    # This makes a terminal of any output.
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm"), ("COLUMNS", str(width))):
        monkeypatch.setenv(name, value)
    group = "payments-settlement-europe"
    sights = {QueueName(f"{group}/{n}"): QueueSight(123_456 + n, 1, f"{group}/pod-{n}/host/7") for n in range(3)}

    print_table(sights_as_table(tuple(sights), sights, 0))

    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]
    names, numbers, clients = ("".join(row[place] for row in rows) for place in (0, 1, -1))
    assert names == "".join(sights)
    assert numbers == "123456123457123458"
    assert clients == "".join(sight.fed or "" for sight in sights.values())
