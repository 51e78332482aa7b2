"""The store alone: what comes back, and what it says of files that cannot be used.

Over 400 lines, as all of them write and damage the one store that is made here.
"""

import errno
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lbg_runtime.broker.engine.answers import SettledRange
from lbg_runtime.broker.engine.changes import (
    Change,
    Changes,
    DeliveryIdsSkipped,
    FlowGone,
    FlowKept,
    MessageKept,
    MessagesDelivered,
    MessagesGone,
    PublisherGone,
    PublisherKept,
    QueueGone,
    QueueKept,
    SubscriptionGone,
    SubscriptionKept,
)
from lbg_runtime.broker.engine.effects import Published, one_by_one
from lbg_runtime.broker.engine.engine import Engine
from lbg_runtime.broker.engine.settings import (
    AccessType,
    Permission,
    QueueSettings,
    RejectOnDiscard,
)
from lbg_runtime.broker.store.statements import FORMAT, IDS_OF_ONE_LIFE
from lbg_runtime.broker.store.store import Store
from lbg_runtime.model.errors import StoreFailed, UserError
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.smf.message import Relay, make_relay

SETTINGS = QueueSettings(
    AccessType.NON_EXCLUSIVE,
    owner="ann",
    permission=Permission.CONSUME,
    ingress_enabled=False,
    reject_on_discard=RejectOnDiscard.ALWAYS,
    quota_bytes=123,
    remarks={"deadMsgQueue": "dead"},
)


def message(number: int, size: int = 10) -> Published:
    relay = make_relay(f"orders/{number}", bytes((number % 256,)) * size)
    return Published(f"orders/{number}", relay, relay.size_bytes, spooled_at_s=number, number=number)


def reopened(path: Path) -> list[Change]:
    """What a store says after the first word, which is about ids."""
    with closing(Store.open(path)) as store:
        _, *rest = store.read()
    return rest


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


def test_everything_that_was_told_comes_back(path):
    kept: list[Change] = [
        QueueKept(1, "default", "orders", SETTINGS),
        QueueKept(2, "other", "orders", QueueSettings()),
        SubscriptionKept(1, "orders/>"),
        SubscriptionKept(1, "#share/a/b"),
        MessageKept(1, 1, message(1)),
        MessageKept(1, 2, message(2)),
        MessagesDelivered(1, 5, ((2, 77, 3),)),
        MessageKept(2, 9, message(9, 100_000)),
        MessageKept(2, 10, replace(message(10), publisher="flow")),
        FlowKept(1, 5, "ann", 70, (75, 77)),
        PublisherKept("default", "flow", 12, ((7, 503, "Spool Over Quota"),)),
    ]
    store = Store.open(path)
    store.write(kept)
    store.close()
    assert reopened(path) == kept


def test_what_is_gone_does_not_come_back(path):
    store = Store.open(path)
    store.write(
        [
            QueueKept(1, "default", "orders", SETTINGS),
            QueueKept(2, "default", "gone", SETTINGS),
            SubscriptionKept(1, "a"),
            SubscriptionKept(2, "b"),
            *(MessageKept(queue, n, message(n)) for queue in (1, 2) for n in (1, 2)),
            MessagesDelivered(1, 5, ((1, 1, 1), (2, 3, 1))),
            MessagesDelivered(2, 6, ((1, 2, 1),)),
            FlowKept(1, 5, "ann", 0, (1, 3)),
            FlowKept(2, 6, "ann", 0, (2,)),
            PublisherKept("default", "flow", 1, ()),
        ]
    )
    store.write(
        [MessagesGone(1, [1]), QueueGone(2), SubscriptionGone(1, "a"), FlowGone(5), PublisherGone("default", "flow")]
    )
    store.close()
    assert reopened(path) == [
        QueueKept(1, "default", "orders", SETTINGS),
        MessageKept(1, 2, message(2)),
        # Its flow is gone, so that nobody is waited for who would come back to it; it was seen all the same.
        MessagesDelivered(1, 5, ((2, 3, 1),)),
    ]


def test_the_file_keeps_nothing_of_messages_and_queues_that_are_gone(path):
    """It would grow for as long as there are deliveries."""
    tables = ("queue", "subscription", "message", "delivery", "flow")
    with closing(Store.open(path)) as store:
        for queue in (1, 2):
            store.write([QueueKept(queue, "default", f"queue {queue}", SETTINGS), SubscriptionKept(queue, "a")])
            store.write([MessageKept(queue, 3, message(3)), FlowKept(queue, queue, "ann", 0, ())])
            store.write([MessagesDelivered(queue, queue, ((3, 77, 1),))])
        store.write([MessagesGone(1, (3,))])
        store.write([QueueGone(2)])
    with closing(sqlite3.connect(path)) as database:
        left = {table: database.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables}  # noqa: S608
    assert left == {"queue": 1, "subscription": 1, "message": 0, "delivery": 0, "flow": 1}


def test_only_what_is_said_to_be_gone_is(path):
    store = Store.open(path)
    queues = [QueueKept(number, "default", f"queue-{number}", QueueSettings()) for number in (1, 2)]
    store.write([*queues, *(MessageKept(queue, n, message(n)) for queue in (1, 2) for n in range(1, 9))])
    store.write([MessagesDelivered(1, 5, [(n, n, 1) for n in (2, 3, 5)])])
    store.write([MessagesGone(1, [2, 3, 4, 6, 8, 1])])
    store.close()
    assert reopened(path) == [
        *queues,
        MessageKept(1, 5, message(5)),
        MessagesDelivered(1, 5, ((5, 5, 1),)),
        MessageKept(1, 7, message(7)),
        *(MessageKept(2, n, message(n)) for n in range(1, 9)),
        MessagesGone(1, (8,)),
    ]


def test_the_latest_word_counts(path):
    store = Store.open(path)
    store.write([QueueKept(1, "default", "orders", SETTINGS), MessageKept(1, 1, message(1))])
    store.write([MessagesDelivered(1, 5, ((1, 1, 1),)), PublisherKept("default", "flow", 1, ())])
    store.write([MessagesDelivered(1, 6, ((1, 2, 2),)), PublisherKept("default", "flow", 2, ())])
    store.write([QueueKept(1, "default", "orders", QueueSettings())])
    store.close()
    assert reopened(path) == [
        QueueKept(1, "default", "orders", QueueSettings()),
        MessageKept(1, 1, message(1)),
        MessagesDelivered(1, 6, ((1, 2, 2),)),
        PublisherKept("default", "flow", 2, ()),
    ]


def test_a_flow_that_holds_nothing_is_forgotten_with_the_next_life(path):
    store = Store.open(path)
    store.write([QueueKept(1, "default", "orders", SETTINGS), FlowKept(1, 5, "ann", 3, ())])
    store.close()
    assert reopened(path) == [QueueKept(1, "default", "orders", SETTINGS)]


def test_every_life_has_ids_and_a_name_of_its_own(path):
    store = Store.open(path)
    first = next(store.read())
    store.write([DeliveryIdsSkipped(1 << 50)])
    names = {store.instance}
    store.close()
    store = Store.open(path)
    second = next(store.read())
    names.add(store.instance)
    store.close()
    assert isinstance(first, DeliveryIdsSkipped)
    assert isinstance(second, DeliveryIdsSkipped)
    assert second.up_to > 1 << 50 > first.up_to
    assert len(names) == 2


def test_the_ids_of_a_life_begin_above_all_that_the_one_before_may_have_given(path):
    begun = []
    for _ in range(3):
        with closing(Store.open(path)) as store:
            begun.append(next(store.read()).up_to)
    assert all(later - sooner >= IDS_OF_ONE_LIFE for sooner, later in pairwise(begun))


def test_every_store_has_an_id_of_its_own_for_all_its_lives(path):
    ids = []
    for place in (path, path, path.parent / "other"):
        store = Store.open(place)
        ids.append(store.spooler)
        store.close()
    assert ids[0] == ids[1] != ids[2]


def test_rows_come_back_in_the_order_in_which_they_were_put_first(path):
    store = Store.open(path)
    store.write([], [("user", b"a", b"1"), ("user", b"b", b"2"), ("user", b"c", b"3")])
    store.write([], [("user", b"a", b"4"), ("user", b"b", None)])
    store.close()
    store = Store.open(path)
    assert store.rows() == [("user", b"a", b"4"), ("user", b"c", b"3")]
    store.close()


def test_only_its_owner_may_read_it(path):
    Store.open(path).close()
    assert path.stat().st_mode & 0o077 == 0


# -- files that cannot be used


def refused(path: Path) -> UserError:
    with pytest.raises(UserError) as refused:
        reopened(path)
    assert refused.value.where == f"store {path}"
    return refused.value


def refusal(path: Path) -> str:
    return refused(path).found


def test_a_store_in_use_is_refused_and_stays_in_use(path):
    store = Store.open(path)
    assert refusal(path) == "another broker has it"
    assert refused(path).expected == "a store that no other broker uses"
    store.write([PublisherKept("default", "flow", 2, ())])
    store.close()
    assert reopened(path) == [PublisherKept("default", "flow", 2, ())]


def test_what_is_no_store_is_refused_and_left_as_it_is(path):
    path.write_bytes(b"something else, " * 1_000)
    assert refusal(path) == "file is not a database"
    assert refused(path).expected == "an undamaged store"
    assert path.read_bytes() == b"something else, " * 1_000


def test_another_database_is_refused(path):
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE other (a)")
    other.commit()
    other.close()
    assert refusal(path).startswith("it is no store of this version")
    assert refused(path).expected == "a store of this version or an older one"


@pytest.mark.parametrize("change", [f"user_version = {FORMAT + 1}", "application_id = 7"], ids=["later", "another's"])
def test_a_store_of_a_later_version_or_another_program_is_refused_and_left_as_it_is(path, change):
    filled(path)
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA {change}")
    before = path.read_bytes()
    assert refusal(path).startswith("it is no store of this version")
    assert path.read_bytes() == before


def test_a_directory_and_a_place_that_is_not_there_are_refused(path):
    assert refusal(path.parent) == "it is a directory"
    assert refusal(path / "nowhere" / "store") == "No such file or directory"
    assert refusal(path.parent / ("n" * 300)) == "File name too long"
    assert refused(path / "nowhere" / "store").expected == "a file that can be written, on a disk with room"


def filled(path: Path) -> None:
    store = Store.open(path)
    store.write(
        [QueueKept(1, "default", "orders", SETTINGS), *(MessageKept(1, n, message(n, 900)) for n in range(1, 50))]
    )
    store.close()


def test_a_message_that_is_not_what_was_written_is_refused(path):
    filled(path)
    data = path.read_bytes()
    place = data.index(bytes((7,)) * 500) + 100
    path.write_bytes(data[:place] + b"!" + data[place + 1 :])
    assert refusal(path) == "it is damaged: message 7 of queue 1 is not what was written"
    assert refused(path).expected == "an undamaged store"


def test_a_store_that_cannot_be_read_to_its_end_is_refused(path):
    filled(path)
    with closing(sqlite3.connect(path)) as database:
        database.execute("DROP TABLE publisher")
    assert refusal(path) == "no such table: publisher"


def test_a_damaged_page_is_refused(path):
    filled(path)
    data = path.read_bytes()
    path.write_bytes(data[: 4096 * 6] + bytes(4096) + data[4096 * 7 :])
    assert "malformed" in refusal(path) or "damaged" in refusal(path)


def test_a_page_that_does_not_list_one_of_its_messages_any_more_is_refused(path):
    filled(path)
    data = bytearray(path.read_bytes())
    # The count of a page's cells is the fourth and fifth of its bytes.
    place = data.index(bytes((7,)) * 500) // 4096 * 4096 + 3
    data[place : place + 2] = (int.from_bytes(data[place : place + 2]) - 1).to_bytes(2)
    path.write_bytes(data)
    assert refusal(path).startswith("it is damaged: ")


def writes(path: Path, count: int, target: Path) -> list[int]:
    """Make so many writes, and leave at `target` what a death after the last one leaves; sizes of the log by write."""
    store = Store.open(path)
    store.write([QueueKept(1, "default", "orders", SETTINGS)])
    log = Path(f"{path}-wal")
    sizes = []
    for number in range(1, count + 1):
        store.write([MessageKept(1, number, message(number, 50)), PublisherKept("default", "flow", number, ())])
        sizes.append(log.stat().st_size)
    shutil.copy(path, target)
    shutil.copy(log, f"{target}-wal")
    store.close()
    return sizes


def damage(log: Path, place: int) -> None:
    whole = log.read_bytes()
    log.write_bytes(whole[:place] + b"!" + whole[place + 1 :])


@pytest.mark.parametrize("lost", [2, 3])
def test_damage_in_the_log_is_told_from_a_torn_end(path, tmp_path, lost):
    target = tmp_path / "copy"
    sizes = writes(path, 5, target)
    damage(Path(f"{target}-wal"), sizes[4 - lost] + 100)
    assert refusal(target).startswith(f"its log is damaged: {lost} writes")


def test_a_last_write_that_was_torn_although_its_end_arrived_is_no_damage(path, tmp_path):
    target = tmp_path / "copy"
    sizes = writes(path, 5, target)
    damage(Path(f"{target}-wal"), sizes[3] + 100)
    assert [each.sequence for each in reopened(target) if isinstance(each, MessageKept)] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("first", "last"),
    [
        pytest.param(0, 4096, id="the first block"),
        pytest.param(0, 32, id="the header"),
        pytest.param(8, 12, id="the size of a page"),
        pytest.param(16, 24, id="the salts in the header"),
        pytest.param(40, 48, id="the salts in the first frame"),
    ],
)
def test_damage_where_the_log_begins_is_refused_and_not_taken_for_a_log_without_writes(path, tmp_path, first, last):
    target = tmp_path / "copy"
    writes(path, 5, target)
    log = Path(f"{target}-wal")
    whole = log.read_bytes()
    log.write_bytes(whole[:first] + bytes(last - first) + whole[last:])
    assert refusal(target).startswith("its log is damaged: ")


def test_damage_in_the_log_of_a_store_behind_a_link_is_refused_too(path, tmp_path):
    target, link = tmp_path / "copy", tmp_path / "elsewhere"
    writes(path, 5, target)
    link.symlink_to(target)
    log = Path(f"{target}-wal")
    log.write_bytes(bytes(32) + log.read_bytes()[32:])
    assert refusal(link).startswith("its log is damaged: ")


@pytest.mark.parametrize("is_there", [True, False], ids=["empty", "gone"])
def test_a_log_whose_file_is_empty_or_gone_is_refused_and_left_as_it_is(path, tmp_path, is_there):
    target = tmp_path / "copy"
    writes(path, 5, target)
    target.unlink()
    if is_there:
        target.touch()
    log = Path(f"{target}-wal")
    whole = log.read_bytes()
    assert refusal(target) == "it is gone or empty, but its log is there"
    assert refused(target).expected == f"the file that {log} belongs to"
    assert log.read_bytes() == whole


def test_a_log_that_the_disk_does_not_give_is_told_in_one_line_and_nothing_of_the_store_stays_open(
    path, tmp_path, monkeypatch
):
    target = tmp_path / "copy"
    writes(path, 5, target)

    def refuse(file, mode):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as ill:
        ill.setattr(Path, "open", refuse)
        assert refusal(target) == "its log: Input/output error"
    assert len([each for each in reopened(target) if isinstance(each, MessageKept)]) == 5


def test_a_first_start_that_died_before_it_wrote_anything_is_no_damage(path):
    path.touch()
    Path(f"{path}-wal").touch()
    assert reopened(path) == []


def test_a_death_between_the_header_of_a_log_and_its_first_frame_is_no_damage(path, tmp_path):
    target = tmp_path / "copy"
    store = Store.open(path)
    store.write([QueueKept(1, "default", "orders", SETTINGS)])
    store.write([MessageKept(1, 1, message(1))])
    # All of it is in the file itself then, and the next write begins the log anew.
    store._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    shutil.copy(path, target)
    log = Path(f"{path}-wal")
    before = log.read_bytes()
    store.write([MessageKept(1, 2, message(2))])
    Path(f"{target}-wal").write_bytes(log.read_bytes()[:32] + before[32:])
    store.close()
    assert reopened(target) == [QueueKept(1, "default", "orders", SETTINGS), MessageKept(1, 1, message(1))]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1))
def test_a_log_that_breaks_off_anywhere_leaves_what_was_confirmed_until_then_and_no_half_of_a_write(path, share):
    target = path.parent / "copy"
    for each in path.parent.iterdir():
        each.unlink()
    sizes = writes(path, 6, target)
    log = Path(f"{target}-wal")
    cut = int(share * log.stat().st_size)
    log.write_bytes(log.read_bytes()[:cut])
    certain = sum(size <= cut for size in sizes)
    found = reopened(target)
    numbers = [each.sequence for each in found if isinstance(each, MessageKept)]
    confirmed = [each.last_judged_id for each in found if isinstance(each, PublisherKept)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= certain
    assert confirmed == numbers[-1:]


def test_a_full_disk_fails_the_write_whole_and_keeps_what_was_written(path):
    store = Store.open(path)
    store.write([QueueKept(1, "default", "orders", SETTINGS), MessageKept(1, 1, message(1))])
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(StoreFailed) as failed:
        store.write([MessageKept(1, 2, message(2)), MessageKept(1, 3, message(3, 100_000))])
    assert failed.value.reason == "database or disk is full"
    store.close()
    assert reopened(path) == [QueueKept(1, "default", "orders", SETTINGS), MessageKept(1, 1, message(1))]


def _remove(file: Path) -> None:
    file.unlink()


def _move(file: Path) -> None:
    file.rename(file.with_name("moved"))


def _put_back(file: Path) -> None:
    """An older copy takes its place."""
    copy = file.with_name("copy")
    shutil.copy(file, copy)
    copy.replace(file)


@pytest.mark.parametrize("lose", [_remove, _move, _put_back])
@pytest.mark.parametrize("suffix", ["", "-wal"], ids=["the file", "its log"])
def test_what_is_written_to_a_file_that_was_taken_away_is_not_kept(path, lose, suffix):
    with closing(Store.open(path)) as store:
        store.write([QueueKept(1, "default", "orders", SETTINGS)])
        lose(path.with_name(path.name + suffix))
        with pytest.raises(StoreFailed, match=r"store .*: it or its log was removed, moved or replaced$"):
            store.write([MessageKept(1, 1, message(1))])


def test_a_link_to_the_file_is_as_good_as_its_name(path):
    link = path.with_name("link")
    link.symlink_to(path)
    with closing(Store.open(link)) as store:
        store.write([QueueKept(1, "default", "orders", SETTINGS)])
    assert reopened(path) == [QueueKept(1, "default", "orders", SETTINGS)]


def test_a_message_with_a_topic_that_is_refused_by_now_comes_back(path):
    relay = make_relay("t" * 300, b"body")
    kept = MessageKept(1, 1, Published("t" * 300, relay, relay.size_bytes, None, number=1))
    with closing(Store.open(path)) as store:
        store.write([QueueKept(1, "default", "orders", SETTINGS), kept])
    assert reopened(path)[1:] == [kept]


def test_a_value_that_cannot_be_kept_fails_the_write(path):
    with closing(Store.open(path)) as store, pytest.raises(StoreFailed, match="too large"):
        store.write([PublisherKept("default", "p", 1 << 63, ())])


def test_a_want_of_memory_fails_the_write_whole(path, monkeypatch):
    """The changes were forgotten, and their confirms left with the next write."""

    def refuse(_: Relay) -> bytes:
        raise MemoryError

    store = Store.open(path)
    store.write([QueueKept(1, "default", "orders", SETTINGS)])
    monkeypatch.setattr(Relay, "direct_prefix", refuse)
    with pytest.raises(StoreFailed) as failed:
        store.write([PublisherKept("default", "p", 1, ()), MessageKept(1, 1, message(1))])
    assert failed.value.reason == "MemoryError"
    store.close()
    assert reopened(path) == [QueueKept(1, "default", "orders", SETTINGS)]


# -- with an engine


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(deeds=st.lists(st.sampled_from("pppsndr"), max_size=40))
def test_a_broker_from_a_store_is_the_one_from_all_its_changes(path, deeds):
    for each in path.parent.iterdir():
        each.unlink()
    changes, log, store = Changes(), [], Store.open(path)
    engine = Engine("1", changes)
    # So small that a message or two outlive it in the queue.
    engine.replays.keep_log_of_size("default", 150)
    engine.create_queue("default", "orders", QueueSettings())
    engine.add_queue_subscription("default", "orders", "orders/>")
    client, _ = engine.connect("default", "user", "", "ann")
    publisher = engine.open_publisher(client, "").flow
    number, flow, last = 0, None, 0
    for deed in ["p", *deeds]:
        effects = []
        if deed == "p":
            number += 1
            effects = engine.publish(publisher, number, message(number))
        elif deed == "d" and flow is not None:
            engine.unbind(flow)
            flow = None
        elif deed in "nr" and flow is None:
            flow = engine.bind(client, "orders", last_received_id=last if deed == "r" else None)[0].flow
            effects = engine.open_window(flow, last, 255)
        elif deed == "s" and flow is not None:
            engine.settle(flow, [SettledRange(0, last - 1, Outcome.ACCEPTED)])
        last = max([last, *(effect.delivery_id for effect in one_by_one(effects))])
        taken = changes.take()
        log += taken
        store.write(taken)
    store.close()
    one, two = Engine("2"), Engine("2")
    one.restore(log)
    store = Store.open(path)
    two.restore(store.read())
    store.close()

    def seen(engine: Engine) -> list[object]:
        client, _ = engine.connect("default", "user", "", "ann")
        flow = engine.bind(client, "orders", last_received_id=last)[0].flow
        held = engine.queue_status("default", "orders").unacked_count
        effects = engine.open_window(flow, last, 255)
        found = engine.replays.log("default")
        return [
            held,
            *((each.message.topic, each.message.number, each.redelivered) for each in one_by_one(effects)),
            found.size_bytes,
            found.began_ns,
            *((entry.came_ns, entry.message.number, entry.message.topic) for entry in found.entries()),
        ]

    assert seen(one) == seen(two)
