from rich.console import Console

from lbg_runtime.cli.demo.table import describe, render
from lbg_runtime.cli.live.board import Board, Move
from lbg_runtime.core.flow.table import FlowState


def shown(board: Board, members: list[str], queues: list[str], headline: str) -> str:
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115 - the console owns it
    console.print(render(board, members, queues, headline))
    console.file.close()
    return console.export_text()


def test_the_table_has_a_row_per_queue_and_a_column_per_member() -> None:
    board = Board()
    board.apply("a", 1, {"kind": "flow", "queue": 0, "event": "active", "role": "primary", "cause": ""})
    board.apply("b", 1, {"kind": "flow", "queue": 0, "event": "bound", "role": "secondary", "cause": ""})
    text = shown(board, ["a", "b"], ["demo/0", "demo/1"], "two members")
    assert "two members" in text
    assert "demo/1" in text
    assert "P ●" in text
    assert "S ○" in text


def test_every_state_of_a_flow_has_a_mark() -> None:
    board = Board()
    for queue, state in enumerate(FlowState):
        record = {"kind": "status", "queue": queue, "role": "primary", "state": state.value, "in_flight": 0}
        board.apply("a", 1, record)
    assert "?" not in shown(board, ["a"], [state.value for state in FlowState], "one member")


def test_a_move_is_one_line() -> None:
    assert describe(Move(1, "a", "b", "crash", 41.6), ["q/0", "q/1"]) == "q/1: a -> b (crash), pause 42 ms"
