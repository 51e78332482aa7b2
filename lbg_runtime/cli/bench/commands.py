"""`lbg bench`: every bench is a command."""

import typer

from lbg_runtime.cli.bench.acks import acks
from lbg_runtime.cli.bench.broker import broker
from lbg_runtime.cli.bench.dispatch import dispatch
from lbg_runtime.cli.bench.everything import all_
from lbg_runtime.cli.bench.faults import faults
from lbg_runtime.cli.bench.landing import landing
from lbg_runtime.cli.bench.latency import latency
from lbg_runtime.cli.bench.moves import handback, moves, takeover
from lbg_runtime.cli.bench.pipeline import pipeline
from lbg_runtime.cli.bench.poison import poison
from lbg_runtime.cli.bench.publish import publish
from lbg_runtime.cli.bench.receive import receive
from lbg_runtime.cli.bench.restripe import restripe
from lbg_runtime.cli.bench.scale import scale
from lbg_runtime.cli.bench.siblings import processes
from lbg_runtime.cli.bench.sidecar import sidecar
from lbg_runtime.cli.bench.soak import soak
from lbg_runtime.cli.interrupt import interrupted_when_asked


def _interrupted_when_asked(context: typer.Context) -> None:
    context.with_resource(interrupted_when_asked())


bench = typer.Typer(
    no_args_is_help=True,
    help="Measure on this machine. The documents quote these figures.",
    callback=_interrupted_when_asked,
)
bench.command()(acks)
bench.command("all")(all_)
bench.command()(broker)
bench.command()(dispatch)
bench.command()(faults)
bench.command()(handback)
bench.command()(landing)
bench.command()(latency)
bench.command()(moves)
bench.command()(pipeline)
bench.command()(poison)
bench.command()(publish)
bench.command()(processes)
bench.command()(receive)
bench.command()(restripe)
bench.command()(scale)
bench.command()(sidecar)
bench.command()(soak)
bench.command()(takeover)
