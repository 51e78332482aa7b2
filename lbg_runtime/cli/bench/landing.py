"""`lbg bench landing`: members that land under load, and what a reader gets when members are killed or moved, their
files are torn, or they are denied the disk. Every published message must be read once, in the order of its key.

Each blow is dealt to a member that has landed something within the last tenth of a second, so that it interrupts work.
A full disk is simulated by the system's limit on the length of a process's files.
"""

import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from lbg_runtime.cli.bench.report import Report, Row, finish, tell
from lbg_runtime.cli.options import Json
from lbg_runtime.model.errors import UserError


def landing(
    each: Annotated[int, typer.Option(min=1, max=1_000, help="Number of blows of each kind.")] = 20,
    only: Annotated[
        list[str] | None, typer.Option(help="Deal only blows of this kind: kill, move, tear or full; repeatable.")
    ] = None,
    rate: Annotated[int, typer.Option(min=10, max=20_000, help="Messages per second.")] = 600,
    seed: Annotated[
        int | None, typer.Option(help="Seed for the order and the moments of the blows. Default: random.")
    ] = None,
    json: Json = False,
) -> None:
    """Kill members that land messages, move their queues, tear their files, deny them the disk: is anything lost?

    Exit code 1 if a message is missing, comes twice or out of order.
    """
    import uvloop

    from lbg_runtime.cli.bench.landing_trial import Blow, landing_trial
    from lbg_runtime.cli.log import quiet_log

    names = {kind.name.lower(): kind for kind in Blow}
    unknown = [name for name in only or () if name not in names]
    if unknown:
        raise UserError("--only", unknown[0], f"one of {', '.join(names)}")
    quiet_log()
    seed = random.randrange(1 << 32) if seed is None else seed
    blows = [kind for name, kind in names.items() if not only or name in only] * each
    random.Random(seed).shuffle(blows)

    def dealt(count: int) -> None:
        if count % 10 == 0:
            tell("landing", f"{count} of {len(blows)} blows")

    tell("landing", f"{len(blows)} blows, seed {seed}")
    with TemporaryDirectory(prefix="lbg-bench-") as folder:
        trial = uvloop.run(landing_trial(Path(folder) / "group", blows, rate=rate, seed=seed, on_blow=dealt))
    rows = [Row(kind.value, "blows", [float(count)]) for kind, count in trial.blows.items()]
    rows += [
        Row("reader", "messages", [float(trial.rows)]),
        Row("reader", "missing", [float(trial.published - trial.rows)]),
        Row("log", "copies", [float(trial.copies)]),
    ]
    settings = {"seed": seed, "rate": rate, "published": trial.published}
    finish(Report("landing", 1, rows, (), settings, wrong=trial.wrong), json=json)
