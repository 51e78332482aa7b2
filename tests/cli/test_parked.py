"""`lbg parked`: what it says of parking queues, and what it puts into them; the official client on a broker's port.

More than 400 lines, as the stage is shared by all of it.
"""

import asyncio
import itertools
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner, Result

from lbg_runtime.broker.engine.accounts import Account, ClientProfile
from lbg_runtime.broker.engine.engine import DEFAULT_VPN
from lbg_runtime.broker.engine.settings import QueueSettings
from lbg_runtime.cli.main import command_line
from lbg_runtime.core.parking.records import (
    DropAsked,
    OwnerFence,
    ParkedMessage,
    ParkingEntry,
    ParkingOwner,
    UnparkAsked,
    WrittenEntry,
    decode_entry,
    encode_entry,
    parking_queue,
)
from lbg_runtime.model.errors import BrokerRefusal, PublishRefused, TransportError, UserError
from lbg_runtime.model.ids import QueueName
from lbg_runtime.model.message import KEY_SEQUENCE_PROPERTY, PARTITION_KEY_PROPERTY, PUBLISHER_PROPERTY, Message
from lbg_runtime.testing.broker_on_port import BrokerOnPort
from lbg_runtime.transport.base import IsLast
from lbg_runtime.transport.solace.settings import SolaceSettings
from lbg_runtime.transport.solace.transport import SolaceTransport
from tests.patience import PATIENCE_S

app = command_line()

pytestmark = [pytest.mark.real_time, pytest.mark.end_to_end]

OWNER = ParkingOwner(7, "n")
QUEUES = [parking_queue("orders", index) for index in range(2)]
SINCE_MS = 1_795_000_000_000
QUIET_S = 3.0
"""A queue that is fed does not pause for that long on any machine."""


def parked(lane: str, number: int, error: str = "") -> ParkedMessage:
    stamps = {PARTITION_KEY_PROPERTY: lane, PUBLISHER_PROPERTY: "p", KEY_SEQUENCE_PROPERTY: number}
    original = Message("h/1/orders/new", b"body %d" % number, stamps)
    return ParkedMessage(lane, OWNER, number, original, 3 if error else 0, error, "", "m1", SINCE_MS + number)


class Stage:
    def __init__(self, folder: Path, broker: BrokerOnPort) -> None:
        self.broker = broker
        self.is_fed = False
        self.config = folder / "config.yaml"
        self.config.write_text(
            f"connection: {{transport: solace, host: '{broker.url}'}}\n"
            "group: {name: orders, hash_prefix: h, hash_count: 4, queue_count: 2}\n"
        )
        for queue in QUEUES:
            broker.create_queue(queue, queue)

    def lbg(self, *words: str) -> Result:
        return CliRunner().invoke(app, ["parked", *words, "--config", str(self.config)])

    def told(self, *words: str) -> list[dict[str, Any]]:
        """What a command says as an object."""
        said: dict[str, list[dict[str, Any]]] = json.loads(self.lbg(*words, "--json").stdout.splitlines()[-1])
        return said["parked"]

    def put(self, queue: QueueName, *entries: WrittenEntry) -> None:
        self.put_as_it_is(*(encode_entry(entry, queue) for entry in entries))

    def put_as_it_is(self, *messages: Message) -> None:
        asyncio.run(self._put(messages))

    async def _put(self, messages: tuple[Message, ...]) -> None:
        session = SolaceTransport(SolaceSettings(hosts=(self.broker.url,), client_name="stage"))
        await session.open()
        for message in messages:
            await session.send(message)
        await session.close()

    def depth_of(self, queue: QueueName) -> int | None:
        """None for a queue that is not there."""
        with suppress(BrokerRefusal):
            return self.broker.queue_status(queue).depth
        return None

    def entries(self, queue: QueueName) -> list[ParkingEntry]:
        async def read() -> list[Message]:
            session = SolaceTransport(SolaceSettings(hosts=(self.broker.url,), client_name="stage"))
            await session.open()
            found = await session.browse(queue, QUIET_S)
            await session.close()
            return found

        return [decode_entry(message) for message in asyncio.run(read())]


def lines(told: Result) -> list[str]:
    return told.stdout.splitlines()


def unread(queue: QueueName, reason: str) -> str:
    return f"lbg: cannot browse {queue}: {reason}; what is parked there is not fully known: try `lbg group verify`"


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    # The broker logs in this process too, and would do so into the output of a command.
    monkeypatch.setattr("lbg_runtime.cli.log.configure_log", lambda: None)
    monkeypatch.setattr("lbg_runtime.runtime.parking.reading.QUIET_S", QUIET_S)
    monkeypatch.setattr("lbg_runtime.runtime.parking.reading.FIRST_MARK_S", 99.0)
    with capture_logs(), BrokerOnPort() as broker:
        stage = Stage(tmp_path, broker)
        monkeypatch.setattr(SolaceTransport, "browse", partialmethod(browse_to_the_end, SolaceTransport.browse, stage))
        yield stage


async def browse_to_the_end(
    session: SolaceTransport,
    browse: Callable[..., Awaitable[list[Message]]],
    stage: Stage,
    queue: QueueName,
    quiet_s: float,
    is_last: IsLast | None = None,
) -> list[Message]:
    """As where nothing comes for so long after the last message that lies there, without waiting for it."""
    depth = stage.depth_of(queue)
    if stage.is_fed or depth is None:
        return await browse(session, queue, quiet_s, is_last)
    numbers = itertools.count(1)
    return await browse(session, queue, quiet_s if depth else 0.01, lambda _: next(numbers) == depth)


def test_the_keys_that_are_parked_are_listed_and_shown(stage: Stage) -> None:
    stage.put(QUEUES[0], OwnerFence(OWNER), parked("key a", 1, "ValueError: no"), parked("key a", 2))
    stage.put(QUEUES[1], OwnerFence(OWNER), parked("shard 3", 1, "KeyError: 'x'"), UnparkAsked("shard 3"))

    listed = stage.lbg("list")
    assert listed.exit_code == 0
    assert lines(listed) == [
        "key a: 2 messages since 2026-11-18T11:06:40+00:00, ValueError: no",
        "shard 3: 1 message since 2026-11-18T11:06:40+00:00, KeyError: 'x', being replayed",
    ]
    told = stage.told("list")
    assert [(each["lane"], each["count"], each["since_ms"], each["replaying"]) for each in told] == [
        ("key a", 2, SINCE_MS + 1, False),
        ("shard 3", 1, SINCE_MS + 1, True),
    ]
    shown = stage.lbg("show", "a")
    assert shown.exit_code == 0
    assert "  #1  2026-11-18T11:06:40+00:00  h/1/orders/new, attempt 3: ValueError: no" in shown.stdout
    assert "      body 2" in shown.stdout
    messages = stage.told("show", "shard 3", "--lane")[0]["messages"]
    assert [(one["number"], one["payload"], one["member"]) for one in messages] == [(1, "body 1", "m1")]
    assert stage.lbg("show", "b").exit_code == 1
    assert stage.broker.queue_status(QUEUES[0]).depth == 3, "looking takes nothing away"


def test_nothing_that_a_publisher_chose_reaches_the_terminal_as_it_is(stage: Stage) -> None:
    evil = "\x1b[2Ja\nkey b: 9 messages"
    original = Message("h/1/\x1b]0;t\x07", b"\x1b[31m\n  #1", {PARTITION_KEY_PROPERTY: evil})
    stage.put(QUEUES[0], ParkedMessage(f"key {evil}", OWNER, 1, original, 3, f"KeyError: {evil}", "", "m1", SINCE_MS))

    assert "      \\x1b[31m\\n  #1" in lines(stage.lbg("show", evil))
    assert stage.told("list")[0]["lane"] == f"key {evil}"
    for words in (("list",), ("show", evil), ("unpark", evil), ("drop", evil, "--number", "1"), ("show", evil + "c")):
        told = stage.lbg(*words)
        assert all(line.isprintable() for line in told.output.split("\n")), words
        assert "\nkey b" not in told.output


def test_what_is_asked_lies_in_the_parking_queue_behind_what_is_there(stage: Stage) -> None:
    stage.put(QUEUES[0], OwnerFence(OWNER), parked("key a", 1, "e"), parked("key a", 2))
    stage.put(QUEUES[1], parked("key b", 1, "e"))

    assert stage.lbg("drop", "a", "--number", "1").exit_code == 0
    assert stage.entries(QUEUES[0])[-1] == DropAsked("key a", (OWNER, 1))
    # It is gone for who looks, though its owner has not removed it yet.
    assert stage.told("list")[0]["count"] == 1
    assert stage.lbg("unpark", "a").exit_code == 0
    assert stage.entries(QUEUES[0])[-1] == UnparkAsked("key a")
    assert stage.lbg("unpark", "--all").exit_code == 0
    assert stage.entries(QUEUES[1])[-1] == UnparkAsked("key b")
    assert stage.lbg("drop", "b", "--all").exit_code == 0
    assert stage.entries(QUEUES[1])[-1] == DropAsked("key b")
    depths = [stage.broker.queue_status(queue).depth for queue in QUEUES]
    for words in (("unpark", "b"), ("drop", "b", "--all"), ("drop", "a", "--number", "1"), ("unpark", "nobody")):
        asked = stage.lbg(*words)
        assert asked.exit_code == 1, words
        assert "is parked" in asked.output
    assert [stage.broker.queue_status(queue).depth for queue in QUEUES] == depths


def test_where_another_number_is_parked_that_is_said(stage: Stage) -> None:
    stage.put(QUEUES[0], parked("key a", 1, "e"), parked("key a", 2))
    asked = stage.lbg("drop", "a", "--number", "99")
    expected = "lbg: no message with that number is parked of a, only 2 others; `lbg parked show` lists them\n"
    assert (asked.exit_code, asked.stderr) == (1, expected)
    assert stage.lbg("drop", "b", "--number", "99").stderr == "lbg: nothing of b is parked\n"
    assert stage.broker.queue_status(QUEUES[0]).depth == 2


def test_the_group_is_asked_of_the_broker_where_the_settings_say_so(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = {"hash_prefix": "h", "hash_count": 4, "queue_count": 2, "hash_function": "crc32", "key": "topic"}
    monkeypatch.setattr("lbg_runtime.admin.stored.ask_broker", lambda _: stored)
    stage.config.write_text(
        f"connection: {{transport: solace, host: '{stage.broker.url}'}}\n"
        "semp: {url: 'http://127.0.0.1:1', username: u, password: p}\n"
        "group: {name: orders, from: semp}\n"
    )
    stage.put(QUEUES[1], parked("key a", 1, "e"))
    assert [each["queue"] for each in stage.told("list")] == [QUEUES[1]]


def test_a_parking_queue_without_room_for_an_order_is_named_with_what_to_raise(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lbg_runtime.runtime.parking.view.RETRY_S", 0.01)
    full = parking_queue("small", 0)
    stage.broker.create_queue(full, full, settings=QueueSettings(quota_bytes=1_400))
    stage.config.write_text(
        f"connection: {{transport: solace, host: '{stage.broker.url}'}}\n"
        "group: {name: small, hash_prefix: h, hash_count: 1, queue_count: 1}\n"
    )
    stage.put(full, parked("key a", 1, "e"))
    for words in (("unpark", "a"), ("drop", "a", "--all")):
        asked = stage.lbg(*words)
        assert isinstance(asked.exception, PublishRefused)
        assert str(asked.exception) == (
            f"cannot publish to {full}: Spool Over Quota: raise maxMsgSpoolUsage of queue {full} "
            "(by semp.queue_spool_mb and `lbg group apply`, or by hand), or have some of it replayed or dropped"
        )
    assert stage.broker.queue_status(full).depth == 1


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("unpark",), "no key"),
        (("unpark", "a", "--all"), "a key and --all"),
        (("drop", "a"), "neither --number nor --all"),
        (("drop", "a", "--number", "1", "--all"), "--number and --all"),
    ],
)
def test_what_is_not_clear_is_refused(words: tuple[str, ...], found: str) -> None:
    asked = CliRunner().invoke(app, ["parked", *words])
    assert isinstance(asked.exception, UserError)
    assert asked.exception.found == found


def test_what_is_parked_beyond_the_queues_of_the_settings_is_found(stage: Stage) -> None:
    stage.config.write_text(stage.config.read_text().replace("queue_count: 2", "queue_count: 1"))
    stage.put(QUEUES[1], parked("key a", 1, "e"))
    with capture_logs() as logs:
        assert [each["queue"] for each in stage.told("list")] == [QUEUES[1]]
    told = [log for log in logs if log["event"] == "parking_queue_beyond_settings"]
    assert [(log["parking"], log["queue_count"]) for log in told] == [(QUEUES[1], 1)]
    assert stage.lbg("unpark", "a").exit_code == 0
    assert stage.entries(QUEUES[1])[-1] == UnparkAsked("key a")


def test_what_cannot_be_read_of_a_key_is_named_and_dropped_by_its_number(stage: Stage) -> None:
    later = encode_entry(parked("key a", 1, "e"), QUEUES[0])
    stage.put(QUEUES[0], OwnerFence(OWNER))
    stage.put_as_it_is(replace(later, properties={**later.properties, "lbg_parked_attempts": "3"}))
    what = f"{QUEUES[0]}: this version cannot read #1 of key a (lbg_parked_attempts '3')"
    advice = "key a stays parked until a member of the version that wrote it has replayed it, or it is dropped"

    listed = stage.lbg("list")
    assert (listed.exit_code, listed.stderr) == (1, f"lbg: {what}; {advice}\n")
    assert lines(listed) == ["key a: 1 message (1 not readable)"]
    asked = stage.lbg("unpark", "a")
    assert (asked.exit_code, asked.stderr.splitlines()[1:]) == (
        1,
        ["lbg: nothing of a is parked in what could be read"],
    )
    stage.put(QUEUES[0], parked("key a", 2, "e"))
    assert lines(stage.lbg("list")) == ["key a: 2 messages (1 not readable) since 2026-11-18T11:06:40+00:00, e"]
    told = json.loads(stage.lbg("list", "--json").stdout.splitlines()[-1])
    assert (told["parked"][0]["count"], told["unread"]) == (2, [what])
    assert stage.lbg("show", "a").exit_code == 0
    assert stage.lbg("drop", "a", "--number", "1").exit_code == 0
    assert stage.entries(QUEUES[0])[-1] == DropAsked("key a", (OWNER, 1))
    listed = stage.lbg("list")
    assert (listed.exit_code, listed.stderr) == (0, ""), "it is as good as gone"


@pytest.mark.parametrize(
    ("properties", "why", "whose"),
    [
        (
            {"lbg_parking": "later"},
            "lbg_parking 'later'",
            "nothing of the queue is handled until a member can read it",
        ),
        ({}, "lbg_parking None", "no version of lbg has put it there, and it stops nothing"),
    ],
)
def test_what_does_not_say_its_key_is_named_with_what_removes_it(
    stage: Stage, properties: dict[str, str], why: str, whose: str
) -> None:
    stage.put_as_it_is(Message(QUEUES[1], b"x", properties))
    what = f"lbg: {QUEUES[1]}: this version cannot read something that does not say its key ({why})"
    listed = stage.lbg("list")
    assert (listed.exit_code, lines(listed)) == (1, ["unread: 1 message (1 not readable)"])
    assert listed.stderr == f"{what}; {whose}; `lbg parked drop unread --lane --all` removes it for good\n"
    [told] = json.loads(stage.lbg("list", "--json").stdout.splitlines()[-1])["parked"]
    unknown = dict.fromkeys(("since_ms", "error", "stack", "attempts"))
    assert told == {"lane": "unread", "queue": QUEUES[1], "count": 1, "replaying": False, **unknown}
    assert stage.lbg("unpark", "--all").exit_code == 1
    assert stage.broker.queue_status(QUEUES[1]).depth == 1, "nothing is asked of it"
    assert stage.lbg("drop", "unread", "--lane", "--all").exit_code == 0
    assert stage.entries(QUEUES[1])[-1] == DropAsked("unread")
    listed = stage.lbg("list")
    assert (listed.exit_code, listed.stderr) == (0, "nothing is parked\n")


def test_a_parking_queue_of_the_settings_that_is_not_there_is_no_end(stage: Stage) -> None:
    stage.config.write_text(stage.config.read_text().replace("queue_count: 2", "queue_count: 3"))
    listed = stage.lbg("list")
    assert (listed.exit_code, listed.stdout) == (1, "")
    assert listed.stderr.splitlines() == [unread(parking_queue("orders", 2), "Unknown Queue")]


def test_a_group_without_parking_queues_is_told_in_one_line(stage: Stage) -> None:
    """`lbg group verify` would say that all is as it should be: the group does not park."""
    stage.config.write_text(stage.config.read_text().replace("name: orders", "name: bills"))
    what = "group bills has no parking queues"
    listed = stage.lbg("list")
    told = f"lbg: {what}; nothing is parked; if its handlers park, `lbg group apply` makes them\n"
    assert (listed.exit_code, listed.stdout, listed.stderr) == (1, "", told)
    assert json.loads(stage.lbg("list", "--json").stdout.splitlines()[-1]) == {"parked": [], "unread": [what]}
    beyond = parking_queue("bills", 2)
    stage.broker.create_queue(beyond, beyond)
    assert lines(stage.lbg("list")) == []
    assert len(stage.lbg("list").stderr.splitlines()) == 2, "the group parks, and two of its queues are missing"


def test_a_parking_queue_that_cannot_be_read_does_not_keep_the_others_from_their_work(stage: Stage) -> None:
    shut = parking_queue("orders", 2)
    stage.config.write_text(stage.config.read_text().replace("queue_count: 2", "queue_count: 3"))
    stage.broker.create_queue(shut, shut, settings=QueueSettings(egress_enabled=False))
    stage.put(QUEUES[0], parked("key a", 1, "e"), parked("key a", 2))
    stage.put(QUEUES[1], parked("key b", 1, "e"))
    complaint = unread(shut, "Queue Shutdown")

    listed = stage.lbg("list")
    assert (listed.exit_code, len(lines(listed)), listed.stderr.splitlines()) == (1, 2, [complaint])
    listed = stage.lbg("list", "--json")
    assert listed.exit_code == 1
    assert json.loads(listed.stdout.splitlines()[-1])["unread"] == [f"cannot browse {shut}: Queue Shutdown"]
    for words in (("show", "a"), ("unpark", "a"), ("drop", "a", "--number", "1")):
        asked = stage.lbg(*words)
        assert (asked.exit_code, asked.stderr.splitlines()) == (0, [complaint]), words
    assert stage.entries(QUEUES[0])[-1] == DropAsked("key a", (OWNER, 1))
    assert stage.lbg("unpark", "--all").exit_code == 1
    assert stage.entries(QUEUES[1])[-1] == UnparkAsked("key b")
    asked = stage.lbg("unpark", "c")
    assert asked.exit_code == 1
    assert asked.stderr.splitlines() == [complaint, "lbg: nothing of c is parked in what could be read"]


def test_nothing_parked_is_said(stage: Stage) -> None:
    listed = stage.lbg("list")
    assert (listed.exit_code, listed.stdout, listed.stderr) == (0, "", "nothing is parked\n")


@contextmanager
def fed(stage: Stage, queue: QueueName, pause_s: float) -> Iterator[None]:
    """Messages of a parked key keep coming."""
    enough, is_fed = threading.Event(), threading.Event()
    stage.is_fed = True

    async def feed() -> None:
        session = SolaceTransport(SolaceSettings(hosts=(stage.broker.url,), client_name="feeder"))
        await session.open()
        number = 100
        while not enough.is_set():
            number += 1
            await session.send(encode_entry(parked("key a", number), queue))
            is_fed.set()
            await asyncio.sleep(pause_s)
        await session.close()

    feeder = threading.Thread(target=asyncio.run, args=(feed(),))
    feeder.start()
    try:
        assert is_fed.wait(PATIENCE_S)
        yield
    finally:
        enough.set()
        feeder.join()
        stage.is_fed = False


def test_a_time_that_no_date_can_show_hides_no_other_key(stage: Stage) -> None:
    odd = replace(parked("key a", 1, "ValueError: no"), parked_at_ms=9_999_999_999_999_999)
    stage.put(QUEUES[0], odd)
    stage.put(QUEUES[1], parked("key b", 1, "KeyError: 'x'"))
    listed = stage.lbg("list")
    assert (listed.exit_code, [line.split(" since ")[0] for line in lines(listed)]) == (
        0,
        ["key a: 1 message", "key b: 1 message"],
    )
    assert "9999999999999999 ms" in stage.lbg("show", "a").stdout


def test_a_key_that_is_fed_all_the_time_is_listed_and_given_orders(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lbg_runtime.runtime.parking.reading.FIRST_MARK_S", 0.3)
    stage.put(QUEUES[0], OwnerFence(OWNER), parked("key a", 1, "ValueError: no"), parked("key a", 2))
    with fed(stage, QUEUES[0], 0.02):
        listed = stage.lbg("list")
        assert (listed.exit_code, listed.stderr) == (0, "")
        assert lines(listed)[0].endswith(" messages since 2026-11-18T11:06:40+00:00, ValueError: no")
        for words in (("show", "a"), ("unpark", "a"), ("drop", "a", "--number", "1"), ("drop", "a", "--all")):
            assert stage.lbg(*words).exit_code == 0, words
    left = stage.entries(QUEUES[0])
    assert [entry for entry in left if isinstance(entry, UnparkAsked | DropAsked)] == [
        UnparkAsked("key a"),
        DropAsked("key a", (OWNER, 1)),
        DropAsked("key a"),
    ]
    assert len(left) < 2 + 1_000


def test_a_queue_without_an_end_is_told(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbg_runtime.runtime.parking.reading.LONGEST_S", 1.0)
    with fed(stage, QUEUES[0], 0.02):
        listed = stage.lbg("list")
    assert (listed.exit_code, len(lines(listed))) == (1, 1)
    assert f"{QUEUES[0]} is fed all the time, and was read for 1 s without an end" in listed.stderr


def test_who_has_no_right_to_publish_is_shown_what_was_read(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    # The refused mark must not make the session log in again, which would end the reading of it.
    monkeypatch.setattr("lbg_runtime.transport.solace.relogin.LOGIN_AGAIN_S", 0.5)
    monkeypatch.setattr("lbg_runtime.runtime.parking.reading.FIRST_MARK_S", 0.1)
    monkeypatch.setattr("lbg_runtime.runtime.parking.reading.LONGEST_S", 1.5)
    viewer = Account("viewer", profile=ClientProfile(may_send=False))
    stage.broker._call(lambda: stage.broker._server.engine.administration.accounts(DEFAULT_VPN).put(viewer))
    stage.config.write_text(
        stage.config.read_text().replace("transport: solace", "transport: solace, username: viewer")
    )
    stage.put(QUEUES[0], parked("key a", 1, "ValueError: no"))
    stage.put(QUEUES[1], parked("key b", 1, "KeyError: 'x'"))
    with fed(stage, QUEUES[0], 0.02):
        listed = stage.lbg("list")
    assert (listed.exit_code, [line.split(":")[0] for line in lines(listed)]) == (1, ["key a", "key b"])
    (complaint,) = listed.stderr.splitlines()
    assert f"{QUEUES[0]} is fed all the time, and was read for 1.5 s without an end" in complaint
    assert "logged in without the right to publish" in complaint


def test_a_lost_connection_is_no_end(stage: Stage) -> None:
    stage.put(QUEUES[0], parked("key a", 1, "ValueError: no"))

    def cut() -> None:
        stage.broker.wait_until(QUEUES[0], lambda status: bool(status.flows))
        (name,) = (each for each in stage.broker.client_names() if each.startswith("lbg-parked-"))
        stage.broker.cut(name)

    with fed(stage, QUEUES[0], 0.02):
        cutting = threading.Thread(target=cut)
        cutting.start()
        listed = stage.lbg("list")
        cutting.join()
    assert isinstance(listed.exception, TransportError)
    assert listed.stdout == ""
