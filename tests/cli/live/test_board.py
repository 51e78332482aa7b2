from lbg_runtime.cli.live.board import Board


def flow(queue: int, event: str, *, role: str = "primary", cause: str = "") -> dict[str, object]:
    return {"kind": "flow", "queue": queue, "event": event, "role": role, "cause": cause}


def dispatch(queue: int, start_ms: int, done_ms: int, outcome: str = "accepted") -> dict[str, object]:
    return {
        "kind": "dispatch",
        "queue": queue,
        "publisher": "p",
        "key": "k",
        "seq": start_ms,
        "outcome": outcome,
        "start_mono_ns": start_ms * 1_000_000,
        "done_mono_ns": done_ms * 1_000_000,
    }


def test_a_queue_is_owned_while_a_member_is_active_on_it() -> None:
    board = Board()
    board.apply("a", 1, flow(0, "bound"))
    assert board.owned_queues() == set()
    board.apply("a", 1, flow(0, "active"))
    assert board.owned_queues() == {0}
    board.apply("a", 1, flow(0, "draining", cause="rebind"))
    assert board.owned_queues() == set()


def test_a_move_has_the_pause_between_the_last_and_the_first_handling_and_the_cause_of_the_release() -> None:
    board = Board()
    board.apply("a", 1, flow(0, "active"))
    for start_ms, done_ms in ((5, 8), (10, 20), (9, 19)):
        board.apply("a", 1, dispatch(0, start_ms, done_ms))
    board.apply("a", 1, flow(0, "draining", cause="rebind"))
    board.apply("a", 1, flow(0, "released", cause="rebind"))
    board.apply("b", 1, flow(0, "active"))
    board.apply("b", 1, dispatch(0, 70, 75))
    (move,) = board.moves
    assert (move.queue, move.source, move.target, move.cause, move.pause_ms) == (0, "a", "b", "rebind", 50.0)
    assert (board.cell(0, "a").handled, board.cell(0, "b").handled) == (3, 1)


def test_a_former_owner_that_stands_by_and_lets_go_again_leaves_the_cause_of_the_move_as_it_was() -> None:
    board = Board()
    board.apply("a", 1, flow(0, "active"))
    board.apply("a", 1, dispatch(0, 10, 20))
    board.apply("a", 1, flow(0, "draining", cause="handback"))
    board.apply("a", 1, flow(0, "released", cause="handback"))
    for cause in ("hop", "unwanted"):
        board.apply("a", 1, flow(0, "bound"))
        board.apply("a", 1, flow(0, "released", cause=cause))
    board.apply("b", 1, flow(0, "active"))
    board.apply("b", 1, dispatch(0, 70, 75))
    assert [(move.source, move.target, move.cause) for move in board.moves] == [("a", "b", "handback")]


def test_a_message_counts_as_handled_once_and_only_when_it_was_accepted() -> None:
    board = Board()
    board.apply("a", 1, dispatch(0, 10, 20, "cancelled"))
    assert not board.distinct
    for member in ("a", "b"):
        board.apply(member, 1, dispatch(0, 10, 20))
    assert len(board.distinct) == 1


def test_an_owner_that_never_let_go_is_a_crash_and_its_next_life_is_another_owner() -> None:
    board = Board()
    board.apply("a", 1, flow(0, "active"))
    board.apply("a", 1, dispatch(0, 10, 20))
    board.member_gone("a")
    assert board.owned_queues() == set()
    board.apply("a", 2, flow(0, "active"))
    board.apply("a", 2, dispatch(0, 400, 410))
    assert [(move.source, move.target, move.cause) for move in board.moves] == [("a", "a", "crash")]


def test_a_member_is_at_home_when_every_queue_it_is_primary_of_feeds_it() -> None:
    board = Board()
    board.apply("a", 1, flow(0, "bound"))
    board.apply("a", 1, flow(1, "bound"))
    board.apply("a", 1, flow(2, "bound", role="secondary"))
    board.apply("b", 1, flow(2, "bound"))
    assert not board.primaries_at_home("a")
    board.apply("a", 1, flow(0, "active"))
    board.apply("a", 1, flow(1, "active"))
    assert board.primaries_at_home("a")
    assert not board.primaries_at_home("b")


def test_a_member_without_primary_queues_is_not_at_home() -> None:
    assert not Board().primaries_at_home("a")


def test_status_records_set_what_is_in_flight() -> None:
    board = Board()
    board.apply("a", 1, {"kind": "status", "queue": 0, "role": "primary", "state": "active", "in_flight": 7})
    board.apply("a", 1, flow(1, "bound"))
    board.apply("b", 1, flow(1, "active"))
    assert (board.cell(0, "a").in_flight, board.cell(1, "b").in_flight) == (7, 0)
    assert board.active_queues("a") == {0}
    board.member_gone("a")
    assert (board.cell(0, "a").in_flight, board.active_queues("a")) == (0, set())
