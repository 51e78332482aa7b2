"""`lbg demo`: plays the story (story.py) with a live table, judges it, prints the verdict."""

from typing import Annotated

import anyio
import typer
from rich.console import Console
from rich.live import Live

from lbg_runtime.cli.demo.story import MEMBER_COUNT, Story
from lbg_runtime.cli.demo.table import describe, render
from lbg_runtime.cli.interrupt import interrupted_when_asked
from lbg_runtime.cli.live.board import Board
from lbg_runtime.cli.live.group import LiveGroup, free_ports, member_name
from lbg_runtime.cli.live.run_folder import run_folder
from lbg_runtime.cli.options import Json, Keys, Rate, print_json
from lbg_runtime.cli.spark import require_spark
from lbg_runtime.cli.validate import Engine, verdict_on
from lbg_runtime.config.rebind_mode import RebindMode
from lbg_runtime.model.errors import UserError
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import GroupName

SHAPE = GroupShape(GroupName("demo"), hash_prefix="demo", hash_count=100, queue_count=8)


def demo(
    json: Json = False,
    rate: Rate = 400,
    keys: Keys = 200,
    rebind_mode: Annotated[
        RebindMode | None,
        typer.Option(help="How queues move, as in rebind.mode. Default: cycle; with --page, cooperative."),
    ] = None,
    page: Annotated[
        bool,
        typer.Option(
            "--page",
            help="Also show the story as a live page, at an address that is printed first. It plays more slowly.",
        ),
    ] = False,
    engine: Annotated[Engine, typer.Option(help="What judges the run, as for lbg validate.")] = Engine.AUTO,
) -> None:
    """Run a group of real processes on loopback, with members that come, crash and leave under load, and judge it.

    Exit code 0 only if the verdict is valid.

    If the verdict is not valid, the journals and logs stay on disk, and the last line says where.
    """
    from lbg_runtime.validator.findings import VerdictKind
    from lbg_runtime.validator.kernel import DEFAULT_ACK_WINDOW_MS
    from lbg_runtime.validator.report import as_object, as_text

    mode = rebind_mode or (RebindMode.COOPERATIVE if page else RebindMode.CYCLE)
    if page and mode is RebindMode.CYCLE:
        raise UserError(
            "--page", "given with --rebind-mode cycle", "--rebind-mode cooperative: members of a cycle do not talk"
        )
    if engine is Engine.SPARK:
        # Said before the story, not after it.
        require_spark()
    # By default SIGTERM would end the process without naming the folder.
    with interrupted_when_asked(), run_folder("lbg-demo-") as folder:
        watch = _Watch(Console(stderr=True))
        group = LiveGroup(
            folder.path,
            SHAPE,
            _sections(mode),
            on_look=lambda: watch.show(group.board),
            status_ports=free_ports(MEMBER_COUNT) if page else (),
        )
        story = Story(group, rate, keys, on_scene=watch.say, on_page=watch.say_page if page else None)
        with watch:
            anyio.run(story.play)
        verdict = verdict_on(group.journals, engine, DEFAULT_ACK_WINDOW_MS)
        if json:
            print_json(as_object(verdict))
        else:
            print(as_text(verdict))
        folder.is_wanted = verdict.kind is not VerdictKind.VALID
        raise typer.Exit(verdict.kind.exit_code)


class _Watch:
    """Shows the story on standard error: a live table on a terminal, else a line for each scene and each move."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._console = console
        self._headline = ""
        self._moves_shown = 0

    def __enter__(self) -> "_Watch":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, headline: str) -> None:
        self._headline = headline
        if self._live is None:
            self._console.print(f"* {headline}", highlight=False, soft_wrap=True)

    def say_page(self, url: str) -> None:
        # Above the live table, where it stays.
        self._console.print(f"the page: {url}", highlight=False, soft_wrap=True)

    def show(self, board: Board) -> None:
        names = SHAPE.queue_names()
        if self._live is not None:
            members = [member_name(index) for index in range(MEMBER_COUNT)]
            self._live.update(render(board, members, names, self._headline), refresh=True)
            return
        for move in board.moves[self._moves_shown :]:
            self._console.print(f"  {describe(move, names)}", highlight=False, soft_wrap=True)
        self._moves_shown = len(board.moves)


def _sections(mode: RebindMode) -> dict[str, dict[str, object]]:
    if mode is RebindMode.CYCLE:
        return {
            "membership": {"mode": "static", "count": MEMBER_COUNT},
            "rebind": {"mode": "cycle", "interval": "3s"},
        }
    # Short delays, as the story is short: members come and go within seconds.
    return {"membership": {"settle": "1s"}, "rebind": {"min_tenure": "1s"}}
