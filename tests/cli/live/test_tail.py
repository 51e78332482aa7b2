from pathlib import Path

import orjson

from lbg_runtime.cli.live.tail import JournalTail, accepted_dispatches


def header(member: str, incarnation: int = 1) -> bytes:
    return orjson.dumps({"kind": "journal", "member": member, "incarnation": incarnation}) + b"\n"


def flow(moment: int) -> bytes:
    return orjson.dumps({"kind": "flow", "mono_ns": moment}) + b"\n"


def test_only_new_complete_lines_are_returned(tmp_path: Path) -> None:
    path = tmp_path / "a-1.member.jsonl"
    tail = JournalTail(tmp_path)
    whole, torn = flow(1), flow(2)
    path.write_bytes(header("a") + whole + torn[:5])
    assert [record.fields["mono_ns"] for record in tail.read()] == [1]
    with path.open("ab") as file:
        file.write(torn[5:])
    assert [record.fields["mono_ns"] for record in tail.read()] == [2]
    assert tail.read() == []


def test_records_of_several_members_come_in_the_order_of_their_times(tmp_path: Path) -> None:
    (tmp_path / "a-1.member.jsonl").write_bytes(header("a") + flow(1) + flow(4))
    (tmp_path / "b-1.member.jsonl").write_bytes(header("b", 2) + flow(2) + flow(3))
    records = JournalTail(tmp_path).read()
    assert [(record.member, record.incarnation) for record in records] == [("a", 1), ("b", 2), ("b", 2), ("a", 1)]


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "p.ledger.jsonl").write_bytes(b"{}\n")
    assert JournalTail(tmp_path).read() == []


def test_handlings_that_ended_well_come_from_all_members_and_not_from_a_torn_line(tmp_path: Path) -> None:
    def handled(done_ns: int, outcome: str = "accepted") -> bytes:
        return orjson.dumps({"kind": "dispatch", "outcome": outcome, "done_mono_ns": done_ns}) + b"\n"

    (tmp_path / "a-1.member.jsonl").write_bytes(header("a") + handled(3) + flow(4) + handled(5)[:-9])
    (tmp_path / "b-1.member.jsonl").write_bytes(header("b") + handled(1, "fenced") + handled(2))
    assert [record["done_mono_ns"] for record in accepted_dispatches(tmp_path)] == [2, 3]
