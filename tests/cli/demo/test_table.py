from rich.console import Console

from lbg_runtime.cli.demo.table import describe, render
from lbg_runtime.cli.live.board import Board, Move


def test_the_table_has_a_row_per_queue_and_a_column_per_member() -> None:
    board = Board()
    board.apply("a", 1, {"kind": "flow", "queue": 0, "event": "active", "role": "primary", "cause": ""})
    board.apply("b", 1, {"kind": "flow", "queue": 0, "event": "bound", "role": "secondary", "cause": ""})
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115 - the console owns it
    console.print(render(board, ["a", "b"], ["demo/0", "demo/1"], "two members"))
    console.file.close()
    text = console.export_text()
    assert "two members" in text
    assert "demo/1" in text
    assert "P ●" in text
    assert "S ○" in text


def test_a_move_is_one_line() -> None:
    assert describe(Move(1, "a", "b", "crash", 41.6), ["q/0", "q/1"]) == "q/1: a -> b (crash), pause 42 ms"
