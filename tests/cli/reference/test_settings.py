"""How settings are told of, by a section made for it."""

from enum import Enum
from typing import Annotated

from pydantic import BeforeValidator, Field, SecretStr

from lbg_runtime.cli.reference.settings import _sections
from lbg_runtime.config.fields import (
    Count,
    DurationMs,
    PositiveDurationMs,
    Secret,
    Section,
    Text,
    all_is_none,
    off_is_none,
)


class Way(Enum):
    """Which way."""

    SHORT = "short"
    """The quick one."""
    LONG = "long"


class Stop(Section, frozen=True):
    """Where to rest."""

    name: Text
    """Of the place."""


class Walk(Section, frozen=True):
    """How to walk."""

    steps: Annotated[Count, Field(ge=1, le=9)] = 3
    """How many."""
    rest_ms: Annotated[DurationMs, Field(alias="rest", ge=50, le=90_000)] = 1_500
    """Between two."""
    pause_ms: Annotated[PositiveDurationMs, Field(alias="pause")] = 60_000
    friends: Annotated[Annotated[int, Field(ge=0)] | None, BeforeValidator(all_is_none)] = None
    """None, in the file `all`: everybody."""
    limit_ms: Annotated[Annotated[int, Field(ge=100)] | None, BeforeValidator(off_is_none), Field(alias="limit")] = None
    way: Way = Way.SHORT
    password: Secret = SecretStr("")
    told: bool = True
    goals: tuple[Text, ...] = ()
    stop: Stop | None = None
    stops: tuple[Stop, ...] = ()


def test_every_kind_of_setting_has_its_words() -> None:
    rows = list(_sections("walk", Walk))
    assert rows[:4] == ["## walk", "", "How to walk.", ""]
    assert rows[6:15] == [
        "| `walk.steps` | whole number from 1 to 9 | `3` | How many. |",
        "| `walk.rest` | duration from 50ms to 90s | `1500ms` | Between two. |",
        "| `walk.pause` | duration above 0ms to 168h | `1m` | |",
        "| `walk.friends` | whole number from 0, or `all` | `all` | `all`: everybody. |",
        "| `walk.limit` | duration from 100ms, or `off` | `off` | |",
        "| `walk.way` | `short` or `long` | `short` | Which way. `short`: The quick one. |",
        "| `walk.password` | secret | empty | |",
        "| `walk.told` | `true` or `false` | `true` | |",
        "| `walk.goals` | list of texts | none | |",
    ]
    assert [row for row in rows if row.startswith("## ")] == ["## walk", "## walk.stop", "## walk.stops[]"]
    assert "| `walk.stops[].name` | text | required | Of the place. |" in rows
