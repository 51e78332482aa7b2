"""Options that several benches have."""

from typing import Annotated

import typer

Rounds = Annotated[int, typer.Option(min=1, max=100, help="Number of rounds, in each of which every arm runs.")]
Messages = Annotated[int, typer.Option(min=1_000, help="Messages in one measurement.")]
MessagesOfFastArms = Annotated[int, typer.Option(min=600, help="Messages in one measurement; slow arms get a sixth.")]
SLOW_SHARE = 6
"""The slow arms get this many times fewer messages, so that every arm runs for about as long."""
MessagesOfBurst = Annotated[int, typer.Option(min=1_000, help="Messages in one burst.")]
KeyCounts = Annotated[
    list[int] | None, typer.Option(min=1, help="Number of different keys; repeatable. Default: 1, 100 and 10,000.")
]

KEY_COUNTS = (1, 100, 10_000)
"""The default of `KeyCounts`."""
