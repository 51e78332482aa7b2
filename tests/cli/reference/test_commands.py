"""How a command is told of, by commands made for it."""

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from lbg_runtime.cli.reference.commands import _commands, _section


class Way(Enum):
    SHORT = "short"
    LONG = "long"


def walk(
    place: Annotated[Path, typer.Argument(help="Where to.")],
    *,
    steps: Annotated[int, typer.Option(min=1, max=9, help="How many.")] = 3,
    way: Annotated[Way | None, typer.Option(help="Which.")] = None,
    stops: Annotated[list[str] | None, typer.Option("--stop", metavar="NAME", help="A | place.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Run.")] = False,
) -> None:
    """Walk somewhere,
    by foot.

    And back.
    """


def rest(where: Annotated[Path | None, typer.Argument(help="Where.")] = None) -> None:
    """Rest."""


def test_arguments_come_first_and_every_option_has_its_row() -> None:
    assert list(_section("lbg walk", walk)) == [
        "## lbg walk",
        "",
        "    lbg walk [OPTIONS] PLACE",
        "",
        "Walk somewhere, by foot.",
        "",
        "And back.",
        "",
        "| | value | default | meaning |",
        "|---|---|---|---|",
        "| `PLACE` | | required | Where to. |",
        "| `--steps` | `NUMBER from 1 to 9` | `3` | How many. |",
        "| `--way` | `short or long` | | Which. |",
        "| `--stop` | `NAME, repeatable` | | A \\| place. |",
        "| `--quick` | | | Run. |",
        "",
    ]


def test_an_argument_that_may_be_left_out_has_brackets() -> None:
    assert list(_section("lbg rest", rest))[2] == "    lbg rest [WHERE]"


def test_commands_of_groups_are_named_by_their_path() -> None:
    app, below = typer.Typer(), typer.Typer()
    below.command("there-and_back")(walk)
    app.add_typer(below, name="go")
    app.command()(walk)
    assert [path for path, _ in _commands("lbg", app)] == ["lbg go there-and_back", "lbg walk"]
