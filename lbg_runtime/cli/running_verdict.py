"""`lbg validate --live DIRECTORY`: the verdict so far on a run whose journals are still being written."""

import asyncio
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from lbg_runtime.cli.options import complain, print_json
from lbg_runtime.model.errors import StreamFailed
from lbg_runtime.model.printable import printable
from lbg_runtime.runtime.stop import StopCause, stop_requests

if TYPE_CHECKING:
    from lbg_runtime.validator.findings import Finding, Standing

_PAUSE_S = 1.0
"""Pause between two looks: findings are reported about this long after they are certain."""

_NEW_ROW = "\r\x1b[K"
"""Takes back what stands in the row of the terminal."""

Tell = Callable[["Standing", Sequence["Finding"]], None]
Look = Callable[[Tell], bool]
"""Judge the new records, report on them, and return whether there is more to read at once."""


@contextmanager
def leaving_without_verdict() -> Iterator[None]:
    """Leave with one line and exit code 3 if the judging query fails: 1 would say that a law is broken."""
    try:
        yield
    except StreamFailed as error:
        complain(error)
        raise typer.Exit(3) from None


def follow(look: Look, limit_s: float | None, *, as_json: bool) -> int:
    """Look until the time is up or a signal comes; print each finding at once, and at the end how the run stands.

    Returns the exit code: 0 if nothing is wrong so far, 1 if a law is broken, 3 if nothing can be said.
    """
    import uvloop

    from lbg_runtime.cli.standing import as_line, as_object
    from lbg_runtime.validator.findings import NOTHING_YET

    standing = NOTHING_YET
    shows_progress = sys.stderr.isatty()

    def tell(now: "Standing", findings: "Sequence[Finding]") -> None:
        nonlocal standing
        standing = now
        if shows_progress and findings:
            print(_NEW_ROW, end="", file=sys.stderr, flush=True)
        for finding in findings:
            # With --json, standard output is for the one object only.
            line = printable(f"{finding.law.value}: {finding.text}")
            print(line, file=sys.stderr if as_json else sys.stdout, flush=True)
        if shows_progress:
            # Of a text that takes several rows, only the last row could be taken back.
            row = as_line(now)[: shutil.get_terminal_size().columns - 1]
            print(f"{_NEW_ROW}{row}", end="", file=sys.stderr, flush=True)

    try:
        uvloop.run(_look_on(lambda: look(tell), limit_s))
    finally:
        if shows_progress:
            print(file=sys.stderr)
    if as_json:
        print_json(as_object(standing))
    else:
        print(as_line(standing))
    return standing.kind.exit_code


async def _look_on(look: Callable[[], bool], limit_s: float | None) -> None:
    stopped = asyncio.Event()

    def stop(_: StopCause) -> None:
        stopped.set()

    loop = asyncio.get_running_loop()
    ends_s = None if limit_s is None else loop.time() + limit_s
    with stop_requests(stop):
        while True:
            # In a thread of its own, so that a signal is heard in the middle of a large slice.
            has_more = await asyncio.to_thread(look)
            left_s = _PAUSE_S if ends_s is None else min(_PAUSE_S, ends_s - loop.time())
            if stopped.is_set():
                return
            # What is already there is judged, however short the time.
            if has_more:
                continue
            if left_s <= 0:
                return
            try:
                async with asyncio.timeout(left_s):
                    # No bound without --for: the user ends it with a signal.
                    await stopped.wait()
            except TimeoutError:
                pass


def looking_at_files(directory: Path, ack_window_ms: int) -> Look:
    """A `Look` at what the files of a directory have gained, with the kernel in this process. Raises `UserError`."""
    from lbg_runtime.journal.follow import RunFollower
    from lbg_runtime.validator.slices import SlicedExamination

    follower, sliced = RunFollower(directory), SlicedExamination(ack_window_ms)

    def look(tell: Tell) -> bool:
        news = follower.look()
        findings = sliced.feed(news.tables, news.until_ns)
        tell(sliced.standing, findings)
        return news.has_more

    return look
