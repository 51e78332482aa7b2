"""The demo's live table: a row per queue, a column per member."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lbg_runtime.cli.live.board import Board, Cell, Move

_SHOWN_MOVES = 6
_LOOKS = {
    "unbound": ("·", "dim red"),
    "binding": ("·", "dim"),
    "standby": ("○", "dim"),
    "active": ("●", "bold green"),
    "draining": ("◐", "yellow"),
    "unbinding": ("◐", "yellow"),
    "gone": ("✗", "red"),
}
"""Mark and style, by state."""


def render(board: Board, members: Sequence[str], queue_names: Sequence[str], headline: str) -> RenderableType:
    table = Table(
        title=headline, title_justify="left", caption="P primary, S secondary; ● active, ○ standby, ◐ draining"
    )
    table.add_column("queue")
    for member in members:
        table.add_column(member, justify="right")
    for index, name in enumerate(queue_names):
        table.add_row(name, *(_cell(board.cell(index, member)) for member in members))
    table.add_row("handled", *(str(_handled(board, member, len(queue_names))) for member in members), end_section=True)
    return Group(table, *(Text(describe(move, queue_names)) for move in board.moves[-_SHOWN_MOVES:]))


def describe(move: Move, queue_names: Sequence[str]) -> str:
    """One move in a line."""
    name = queue_names[move.queue]
    return f"{name}: {move.source} -> {move.target} ({move.cause}), pause {move.pause_ms:.0f} ms"


def _cell(cell: Cell) -> Text:
    if not cell.role and cell.state == "unbound":
        return Text("")
    role = cell.role[:1].upper()
    mark, style = _LOOKS.get(cell.state, ("?", ""))
    return Text(f"{role} {mark} {cell.in_flight:>3} {cell.handled:>6}", style=style)


def _handled(board: Board, member: str, queue_count: int) -> int:
    return sum(board.cell(queue, member).handled for queue in range(queue_count))
