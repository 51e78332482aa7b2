"""How a broker that is measured speaks with the process that measures it."""

import sys
from collections.abc import Callable, Mapping

from lbg_runtime.cli.lines import read_lines, say


async def answer_lines(host: str, answer: Callable[[bytes], Mapping[str, object]]) -> None:
    """Say where the broker listens, as a line of JSON; then answer each line on standard input by another, until that
    ends."""
    say({"host": host})
    async for line in read_lines(sys.stdin.fileno()):
        say(answer(line))
