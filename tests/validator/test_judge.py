"""What makes a verdict unknown, and what does not.

More than 400 lines, as all cases are damage to the same few runs.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace

import pyarrow as pa
import pytest

from lbg_runtime.model.record import CloseRecord, ConfirmedRecord, DispatchRecord, FlowRecord, StripesRecord
from lbg_runtime.validator.findings import Law, VerdictKind
from lbg_runtime.validator.judge import validate
from lbg_runtime.validator.schema import RunTables
from tests.validator.changes import (
    clear_flag,
    confirm_one_more,
    lose_last_of_key,
    repeat_settled,
    run_into_next,
    swap_two,
)
from tests.validator.history import HASH_COUNT, World, story
from tests.validator.run_files import MS, SECOND, WALL_OFFSET_NS, Run, wall_us
from tests.validator.script import Life, published
from tests.validator.striping import striped_story


def with_defect(tables: RunTables, which: str, file: int = 0) -> RunTables:
    """One file of the run has a defect."""
    table = getattr(tables, which)
    defects = [None] * table.num_rows
    defects[file] = "line 7: not a record"
    place = table.schema.get_field_index("defect")
    changed = {which: table.set_column(place, table.schema.field(place), pa.array(defects, pa.string()))}
    return RunTables(**{name: changed.get(name, getattr(tables, name)) for name in RunTables.__dataclass_fields__})


def drop_a_record(run: Run) -> None:
    close = run.journals[0].close or run.journals[-1].close
    assert close is not None
    journal = next(journal for journal in run.journals if journal.close)
    journal.close = replace(close, dropped=1)


def remove_all_journals(run: Run) -> None:
    run.journals.clear()


def remove_all_ledgers(run: Run) -> None:
    run.ledgers.clear()


def remove_one_ledger(run: Run) -> None:
    del run.ledgers[0]


def forget_a_confirmation(run: Run) -> None:
    run.ledgers[0].confirmed.pop()


def tear_a_ledger(run: Run) -> None:
    run.ledgers[0].close = None


def drop_in_a_ledger(run: Run) -> None:
    run.ledgers[0].close = CloseRecord(0, 3, True, 0)


def change_run_id(run: Run) -> None:
    run.journals[0].header = replace(run.journals[0].header, run_id="other")


def change_group(run: Run) -> None:
    run.ledgers[0].header = replace(run.ledgers[0].header, group="other")


def change_hash_count(run: Run) -> None:
    run.ledgers[0].header = replace(run.ledgers[0].header, hash_count=HASH_COUNT * 2)


def change_queue_count(run: Run) -> None:
    run.journals = [*run.journals, replace(run.journals[0], records=[])]
    run.journals[-1].header = replace(run.journals[0].header, queue_count=7, incarnation=99)


def claim_a_life_twice(run: Run) -> None:
    run.journals.append(replace(run.journals[0], records=[]))


def forget_numbers(run: Run) -> None:
    record = run.journals[0].dispatches[0]
    run.journals[0].records.append(replace(record, seq=None, start_mono_ns=1, done_mono_ns=2, receive_mono_ns=0))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (remove_all_journals, "there is no member journal"),
        (remove_all_ledgers, "there is no publisher ledger"),
        (remove_one_ledger, "messages of publishers without a ledger were handled: p0"),
        (forget_a_confirmation, "handled messages are in no ledger"),
        (drop_a_record, ".member.jsonl: 1 records were dropped"),
        (tear_a_ledger, "the publisher did not close it"),
        (drop_in_a_ledger, "3 records were dropped"),
        (
            change_run_id,
            "the files disagree on run_id: 'other' in 0.member.jsonl; 'run' in 0.ledger.jsonl, 1.ledger.jsonl and ",
        ),
        (change_group, "; 'other' in 0.ledger.jsonl"),
        (change_hash_count, f"{2 * HASH_COUNT} in 0.ledger.jsonl"),
        (change_queue_count, "; 7 in "),
        (claim_a_life_twice, "2 journals claim incarnation 1 of member a: 0.member.jsonl, "),
        (forget_numbers, "1 handlings are of messages without publisher, key or number"),
    ],
)
def test_missing_or_unfit_records_make_the_verdict_unknown(damage: Callable[[Run], None], reason: str) -> None:
    run = story()
    damage(run)

    verdict = validate(run.tables())

    assert any(reason in each for each in verdict.reasons), verdict.reasons
    assert verdict.kind is VerdictKind.UNKNOWN


def test_a_member_that_others_name_and_that_left_no_journal_makes_the_verdict_unknown() -> None:
    run = story()
    assert swap_two(run)
    tables = run.tables()
    named = pa.array(['["a","gone","left"]', *[None] * (len(run.journals) - 1)], pa.string())
    place = tables.journals.schema.get_field_index("named")
    tables = replace(tables, journals=tables.journals.set_column(place, "named", named))

    verdict = validate(tables)

    assert [f"there is no journal of member {name}, whom others name" for name in ("gone", "left")] == [
        *verdict.reasons
    ]
    assert (verdict.kind, verdict.unproven) == (VerdictKind.UNKNOWN, (Law.ORDER,))


@pytest.mark.parametrize("which", ["journals", "ledgers"])
def test_a_defective_file_makes_the_verdict_unknown_and_is_named(which: str) -> None:
    verdict = validate(with_defect(story().tables(), which))

    assert verdict.kind is VerdictKind.UNKNOWN
    assert any("line 7: not a record" in reason for reason in verdict.reasons)


def test_a_run_without_any_message_proves_nothing() -> None:
    verdict = validate(World(1).play([]).tables())

    assert verdict.kind is VerdictKind.UNKNOWN
    assert verdict.reasons == ("no message was confirmed, so nothing was proven",)


def test_no_files_at_all_are_unknown() -> None:
    assert validate(Run().tables()).kind is VerdictKind.UNKNOWN


@pytest.mark.parametrize("change", [lose_last_of_key, swap_two, repeat_settled])
def test_what_a_missing_record_could_explain_is_reported_but_not_proven(change: Callable[[Run], bool]) -> None:
    run = story()
    assert change(run)
    drop_a_record(run)

    verdict = validate(run.tables())

    assert verdict.kind is VerdictKind.UNKNOWN
    assert len(verdict.unproven) == 1
    assert verdict.counts[verdict.unproven[0]] == 1


@pytest.mark.parametrize("change", [repeat_settled, clear_flag])
def test_a_repeat_is_not_proven_where_a_second_sending_may_be_missing(change: Callable[[Run], bool]) -> None:
    run = story()
    assert change(run)
    drop_in_a_ledger(run)

    verdict = validate(run.tables())

    assert verdict.kind is VerdictKind.UNKNOWN
    assert verdict.unproven


def test_what_the_records_prove_is_invalid_even_where_others_are_missing() -> None:
    run = story()
    assert run_into_next(run)
    drop_a_record(run)

    verdict = validate(run.tables())

    assert verdict.kind is VerdictKind.INVALID
    assert verdict.reasons


def test_a_loss_is_proven_although_a_publisher_crashed() -> None:
    run = story()
    assert confirm_one_more(run)
    tear_a_ledger(run)

    verdict = validate(run.tables())

    assert verdict.kind is VerdictKind.INVALID
    assert verdict.counts[Law.LOSS] == 1


def test_findings_across_runs_prove_nothing() -> None:
    run = story()
    assert run_into_next(run)
    change_run_id(run)

    assert validate(run.tables()).kind is VerdictKind.UNKNOWN


def test_every_violation_is_counted_but_only_the_first_ones_keep_a_witness() -> None:
    run = story()
    record = run.ledgers[0].confirmed[0]
    run.ledgers[0].confirmed += [replace(record, key=f"new{n}", first_seq=1, last_seq=3) for n in range(30)]

    verdict = validate(run.tables())

    assert verdict.counts[Law.LOSS] == 90
    assert len(verdict.findings) == 20


def test_losses_of_a_key_are_told_in_the_order_of_their_numbers_and_neighbours_as_one() -> None:
    run = story()
    record = run.ledgers[0].confirmed[0]
    ranges = ((11, 12), (5, 5), (13, 13), (6, 7), (100, 100))
    run.ledgers[0].confirmed += [replace(record, key="new", first_seq=first, last_seq=last) for first, last in ranges]

    verdict = validate(run.tables())

    told = [finding.text.partition(": ")[2].partition(" confirmed")[0] for finding in verdict.findings]
    assert told == ["5 to 7", "11 to 13", "100"]
    assert verdict.counts[Law.LOSS] == 7


def in_good_order(run: Run, *handled: tuple[str, int, int]) -> Run:
    """One member handles these keys, shards and numbers."""
    life = Life(run, "a").flow("active", 1)
    for place, (key, shard, seq) in enumerate(handled, 1):
        life.handle(seq, 10 * place, 10 * place + 1, 10 * place + 1, key=key, shard=shard)
    life.leave(900)
    return run


def test_handled_messages_that_their_publisher_did_not_list_are_counted_and_nothing_is_said_of_strangers() -> None:
    verdict = validate(published(in_good_order(Run(), ("k", 0, 1), ("k", 0, 2), ("m", 0, 2)), 1).tables())

    assert (verdict.kind, verdict.reasons) == (VerdictKind.UNKNOWN, ("2 handled messages are in no ledger",))


def test_a_handled_message_of_another_key_does_not_stand_for_a_lost_one_of_its_number() -> None:
    verdict = validate(published(in_good_order(Run(), ("k", 0, 1), ("m", 0, 2)), 2).tables())

    assert verdict.kind is VerdictKind.INVALID
    assert [finding.text for finding in verdict.findings] == ["p/k: 2 confirmed, never handled to an end"]


SCATTERED = (("c", 1), ("b", 3), ("k", 0), ("b", 1), ("b", 2))


def test_every_key_on_several_shards_is_named_with_the_first_two() -> None:
    run = in_good_order(Run(), *((key, shard, place) for place, (key, shard) in enumerate(SCATTERED, 1)))

    verdict = validate(published(run, 1, shard=3).tables())

    assert verdict.counts[Law.KEY_ON_TWO_SHARDS] == 2
    assert [finding.text for finding in verdict.findings if finding.law is Law.KEY_ON_TWO_SHARDS] == [
        "key 'b' lies in shards 1 and 2",
        "key 'k' lies in shards 0 and 3",
    ]


def of_queue_count(run: Run, count: int) -> Run:
    """The run, one of whose members was started with this queue count."""
    run.journals[0].header = replace(run.journals[0].header, queue_count=count)
    return run


@pytest.mark.parametrize("count", [8, 12, 6])
def test_members_may_be_started_with_the_queue_count_of_any_layout(count: int) -> None:
    assert validate(of_queue_count(striped_story(8, 12, 6), count).tables()).kind is VerdictKind.VALID


def test_a_queue_count_that_no_restriping_explains_is_a_disagreement() -> None:
    verdict = validate(of_queue_count(striped_story(8, 12, 6), 7).tables())

    assert verdict.kind is VerdictKind.UNKNOWN
    assert verdict.reasons == (
        "the files disagree on queue_count: headers name 7 in 0.member.jsonl, the records of re-stripings 6, 8, 12",
    )


def change_stripes(run: Run, event: str, **facts: object) -> None:
    """Every record of the event in the second re-striping says something else."""
    for journal in run.journals:
        journal.records = [
            replace(record, **facts)  # type: ignore[arg-type]
            if isinstance(record, StripesRecord) and (record.generation, record.event) == (2, event)
            else record
            for record in journal.records
        ]


@pytest.mark.parametrize(
    ("event", "facts", "reason"),
    [
        ("finished", {"to_count": 5}, "re-striping 2 is recorded with several queue counts"),
        ("finished", {"from_count": 5}, "re-striping 2 begins with 12 queues, but the one before it ended with 6"),
        ("finished", {"to_count": 0}, "records of re-stripings name a layout without queues"),
        ("left", {"shard": None}, "records of re-stripings let a shard leave a queue that it does not leave"),
        ("left", {"queue": 3}, "records of re-stripings let a shard leave a queue that it does not leave"),
    ],
)
def test_records_of_restripings_that_contradict_each_other_make_the_verdict_unknown(
    event: str, facts: dict[str, object], reason: str
) -> None:
    run = striped_story(8, 12, 6)
    change_stripes(run, event, **facts)

    verdict = validate(run.tables())

    assert any(reason in each for each in verdict.reasons), verdict.reasons
    assert verdict.kind is not VerdictKind.VALID


def put_on_another_host(run: Run, member: str, clock_ahead_ns: int) -> None:
    """The same run, with one member on a host that started at another time and whose wall clock is ahead."""
    for journal in run.journals:
        journal.header = replace(journal.header, host="other" if journal.header.member == member else "host")
    start_clock_anew(run, member, clock_ahead_ns)


def start_clock_anew(run: Run, member: str, clock_ahead_ns: int = 0) -> None:
    """The same run, with another monotonic clock for one member, and a wall clock that is ahead."""
    later_start_ns = 600 * SECOND
    for journal in run.journals:
        if journal.header.member == member:
            journal.wall_offset_ns = WALL_OFFSET_NS + later_start_ns + clock_ahead_ns
            journal.records = [_shifted(record, -later_start_ns, clock_ahead_ns // 1000) for record in journal.records]
            if journal.close:
                journal.close = replace(journal.close, t=journal.close.t + clock_ahead_ns // 1000)


def _shifted(record: object, mono_ns: int, wall_us: int) -> object:
    facts = {field.name: getattr(record, field.name) for field in fields(record)}  # type: ignore[arg-type]
    monos = {name: value + mono_ns for name, value in facts.items() if name.endswith("mono_ns") and value is not None}
    walls = {name: facts[name] + wall_us for name in ("t", "t_done", "t_settle") if facts.get(name) is not None}
    return replace(record, **monos, **walls)  # type: ignore[type-var]


def test_members_on_several_hosts_are_compared_by_their_wall_clocks() -> None:
    run = story()
    moves_on_one_host = validate(run.tables()).moves
    put_on_another_host(run, "b", 0)

    verdict = validate(run.tables())

    assert verdict.kind is VerdictKind.VALID, verdict
    assert [replace(move, start_mono_ns=0) for move in verdict.moves] == [
        replace(move, start_mono_ns=0) for move in moves_on_one_host
    ]


def name_starts(run: Run, starts: Mapping[str, str | None]) -> None:
    for journal in run.journals:
        journal.header = replace(journal.header, boot_id=starts.get(journal.header.member))


def test_a_host_that_was_started_anew_under_its_name_has_another_clock() -> None:
    run = story()
    moves_on_one_clock = validate(run.tables()).moves
    start_clock_anew(run, "b")
    assert validate(run.tables()).kind is VerdictKind.INVALID
    # An older journal, which does not say, is of one of the starts.
    name_starts(run, {"a": "one", "b": "two"})

    verdict = validate(run.tables())

    assert verdict.kind is VerdictKind.VALID, verdict
    assert [(move.queue, move.to_member) for move in verdict.moves] == [
        (move.queue, move.to_member) for move in moves_on_one_clock
    ]


@pytest.mark.parametrize("starts", [{"a": "one", "b": "one"}, {"a": "one"}, {}])
def test_journals_of_one_start_of_a_host_keep_its_exact_clock(starts: Mapping[str, str | None]) -> None:
    run = story()
    expected = validate(run.tables())
    name_starts(run, starts)
    for journal in run.journals:
        # Where walls counted, this would show.
        journal.wall_offset_ns += 100 * SECOND * journal.header.incarnation

    assert validate(run.tables()).moves == expected.moves


def test_the_wall_clock_of_a_verdict_is_that_of_a_journal_to_the_nanosecond() -> None:
    run = story()
    for number, journal in enumerate(run.journals):
        journal.wall_offset_ns += 1 + number

    assert validate(run.tables()).wall_ns in {journal.wall_offset_ns for journal in run.journals}


@pytest.mark.parametrize(
    ("clock_ahead_ns", "expected"), [(20 * MS, VerdictKind.UNKNOWN), (900 * MS, VerdictKind.INVALID)]
)
def test_an_order_that_only_two_hosts_clocks_show_counts_beyond_what_clocks_differ(
    clock_ahead_ns: int, expected: VerdictKind
) -> None:
    run = handed_over_within(10 * MS)
    assert validate(run.tables()).kind is VerdictKind.VALID
    put_on_another_host(run, "a", clock_ahead_ns)

    verdict = validate(run.tables())

    assert verdict.kind is expected, verdict
    if expected is VerdictKind.UNKNOWN:
        assert any("the clocks of two hosts" in reason for reason in verdict.reasons)


@pytest.mark.parametrize(("set_back_ns", "expected"), [(0, VerdictKind.VALID), (900 * MS, VerdictKind.UNKNOWN)])
def test_an_order_that_only_a_clock_that_was_set_shows_is_not_proven_beside_another_host(
    set_back_ns: int, expected: VerdictKind
) -> None:
    run = handed_over_within(10 * MS)
    header = replace(run.journals[0].header, member="c")
    run.journals.append(replace(run.journals[0], header=header, records=[]))
    put_on_another_host(run, "c", 0)
    for journal in run.journals:
        if journal.header.member == "a":
            journal.wall_offset_ns += set_back_ns

    assert validate(run.tables()).kind is expected


def handed_over_within(pause_ns: int) -> Run:
    """Member a handles the first message of a key, b the second, so long after."""
    run = World(1).play([])
    begin = 2000 * SECOND
    for journal, seq, start in ((run.journals[0], 1, begin), (run.journals[1], 2, begin + pause_ns)):
        journal.records = [
            FlowRecord(0, 1, "active", "primary", "", wall_us(start - 2), start - 2),
            dispatch(seq, start, start + 1000),
            FlowRecord(0, 1, "released", "primary", "rebind", wall_us(start + 9000), start + 9000),
        ]
    run.ledgers[0].confirmed = [ConfirmedRecord("k0", 0, 1, 2, 0, 0)]
    return run


def dispatch(seq: int, start: int, done: int) -> DispatchRecord:
    return DispatchRecord(
        queue=0,
        bind_epoch=1,
        shard=0,
        key="k0",
        topic="t",
        publisher="p0",
        seq=seq,
        message_id=None,
        delivery_id=seq,
        redelivered=False,
        attempts=1,
        local_seq=seq,
        receive_mono_ns=start - 1,
        start_mono_ns=start,
        done_mono_ns=done,
        t_done=wall_us(done),
        t_settle=wall_us(done),
        outcome="accepted",
        size_bytes=1,
    )
