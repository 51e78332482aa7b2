"""Starting from what is stored of a group, and noticing that it became something else.

More than 400 lines, as both are about the same stored group.
"""

import asyncio
import errno
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
import structlog

from lbg_runtime.admin.account import open_semp
from lbg_runtime.admin.group import GroupAdmin
from lbg_runtime.admin.settings import spec_of
from lbg_runtime.admin.spec import StoredGroup, read_marker
from lbg_runtime.admin.state import read_stored
from lbg_runtime.admin.stored import (
    LOOK_S,
    Difference,
    StoredGroupWatch,
    ask_broker,
    differences,
    stopped_by_changes,
    store_queue_count,
    stored_queue_count,
    watch_of,
)
from lbg_runtime.broker.engine.engine import Engine
from lbg_runtime.broker.semp.access import AccessLevel, Administrator
from lbg_runtime.broker.semp.server import SempServer
from lbg_runtime.config.load import parse_settings, problems_of
from lbg_runtime.config.settings import Settings
from lbg_runtime.model.errors import ConfigError, InvariantViolated, SempUnreachable, UserError
from lbg_runtime.model.message import Message
from lbg_runtime.runtime.app import App
from lbg_runtime.runtime.handlers.registry import Handlers
from tests.addresses import OWN_HOST

GROUP = {"name": "orders", "hash_prefix": "h", "hash_count": 8, "queue_count": 2, "key": "topic_level:1"}
READER = Administrator("reader", "r", vpn_levels={"default": AccessLevel.READ_ONLY})
WRITER = Administrator("admin", "admin", AccessLevel.ADMIN)
STRANGER = Administrator("stranger", "s")
STORED = {"hash_prefix": "h", "hash_count": 1, "queue_count": 1, "hash_function": "crc32", "key": "topic"}


def document(url: str, reader: str = "reader", **group: Any) -> dict[str, Any]:
    return {
        "semp": {"url": url, "username": reader, "password": reader[0]},
        "group": {"name": "orders", "from": "semp", **group},
    }


def settings_in_file() -> Settings:
    return parse_settings({"group": GROUP}, "test", {})


def written(**changes: object) -> str:
    values = {"V": 1, "HP": "h", "HC": 8, "QC": 2, "QS": 1, "CU": "members", "HF": "crc32", "KY": "topic_level:1"}
    return json.dumps({**values, **changes})


def marker(**changes: object) -> StoredGroup:
    stored = read_marker("orders", written(**changes))
    assert stored is not None
    return stored


async def made_on(server: SempServer) -> None:
    made_of = {"group": GROUP, "semp": {"url": server.url, "password": "admin"}, "connection": {"username": "members"}}
    settings = parse_settings(made_of, "test", {})
    async with open_semp(settings) as client:
        admin = GroupAdmin(client, "default")
        await admin.create(await admin.plan(spec_of(settings), is_new=True))


@pytest.mark.real_time
async def test_a_restriped_group_is_stored_with_its_new_count() -> None:
    async with serve() as server:
        await made_on(server)
        made_of = {"group": GROUP, "semp": {"url": server.url, "password": "admin"}}
        settings = parse_settings(made_of, "test", {})
        before = await anyio.to_thread.run_sync(ask_broker, settings)
        async with open_semp(settings) as client:
            for _ in range(2):
                await store_queue_count(client, settings, 5)
                assert await stored_queue_count(client, settings) == 5
        assert await anyio.to_thread.run_sync(ask_broker, settings) == {**before, "queue_count": 5}


@pytest.mark.real_time
async def test_what_is_not_stored_need_not_be_counted() -> None:
    async with serve() as server:
        made_of = {"group": GROUP, "semp": {"url": server.url, "password": "admin"}}
        settings = parse_settings(made_of, "test", {})
        async with open_semp(settings) as client:
            await store_queue_count(client, settings, 5)
            assert await stored_queue_count(client, settings) is None
            assert await read_stored(client, "default", settings.group.name) is None


def serve() -> SempServer:
    return SempServer(Engine(), lambda _: None, OWN_HOST, 0, administrators=(WRITER, READER, STRANGER))


async def ask(document: dict[str, Any]) -> Settings:
    """In a thread: asking blocks, and the server is on this loop."""
    return await asyncio.to_thread(parse_settings, document, "test", {}, ask_broker)


@pytest.mark.real_time
async def test_who_may_read_the_vpn_starts_from_what_was_stored(tmp_path: Path) -> None:
    cache = tmp_path / "orders.json"
    async with serve() as server:
        await made_on(server)
        settings = await ask(document(server.url, cache=str(cache), provision="none"))
        assert settings.group.shape() == settings_in_file().group.shape()
        assert settings.group.key == settings_in_file().group.key
        url = server.url
    # The management API is gone, and the member starts all the same; one without a cache does not.
    assert (await ask(document(url, cache=str(cache)))).group == settings.group
    expected = r"semp\.url: no SEMP .* the broker's management API .*, or a group\.cache of an earlier start"
    with pytest.raises(ConfigError, match=expected):
        await ask(document(url))


@pytest.mark.real_time
async def test_what_was_kept_of_another_group_or_cannot_be_read_is_not_taken(tmp_path: Path) -> None:
    cache = tmp_path / "shared.json"
    async with serve() as server:
        await made_on(server)
        await ask(document(server.url, cache=str(cache)))
        url = server.url
    kept = json.loads(cache.read_bytes())
    assert {**kept, "marker": None} == {"group": "orders", "vpn": "default", "marker": None}

    async def refused(path: Path, **more: Any) -> str:
        with pytest.raises(
            ConfigError, match=rf"^group\.cache: {path} .*no SEMP answer from .*; expected a broker"
        ) as no:
            await ask(document(url, cache=str(path), **more))
        return str(no.value)

    assert "is of group orders in VPN default, not of pay in default" in await refused(cache, name="pay")
    for content, words in (
        (json.dumps({**kept, "vpn": "other"}), "is of group orders in VPN other"),
        (kept["marker"], "has no name of a group in it, as an earlier version of lbg wrote it"),
        (json.dumps({**kept, "marker": "{}"}), "holds nothing that this version of lbg can read"),
        (json.dumps({**kept, "marker": 1}), "holds nothing"),
        ("{", "holds nothing"),
        (" " * 100_000, "cannot be read (more than 65536 bytes)"),
    ):
        cache.write_text(content)
        assert words in await refused(cache)
    os.mkfifo(tmp_path / "pipe")
    assert "cannot be read (not a regular file)" in await refused(tmp_path / "pipe")
    assert "cannot be read (not a regular file)" in await refused(Path("/dev/zero"))
    assert "cannot be read (No such file or directory)" in await refused(tmp_path / "none")


@pytest.mark.real_time
async def test_only_what_can_be_read_is_kept_and_only_in_a_file(tmp_path: Path) -> None:
    cache, pipe = tmp_path / "orders.json", tmp_path / "pipe"
    os.mkfifo(pipe)
    async with serve() as server:
        await made_on(server)
        await ask(document(server.url, cache=str(cache)))
        await ask(document(server.url, cache=str(pipe)))
        assert pipe.is_fifo()
        kept = cache.read_bytes()
        administrator = {"group": GROUP, "semp": {"url": server.url, "password": "admin"}}
        async with open_semp(parse_settings(administrator, "test", {})) as client:
            await client.update(("msgVpns", "default", "jndiQueues", "lbg/orders"), {"physicalName": "else"})
        with pytest.raises(ConfigError, match=r"^group\.name: what is stored of it cannot be read"):
            await ask(document(server.url, cache=str(cache)))
        assert cache.read_bytes() == kept


def test_a_cache_that_cannot_be_written_keeps_nobody_from_starting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def read(_: Settings) -> str:
        return written()

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("lbg_runtime.admin.stored._read_text", read)
    monkeypatch.setattr(Path, "replace", no_room)
    for cache in (tmp_path / "orders.json", tmp_path / "none" / "orders.json"):
        with structlog.testing.capture_logs() as told:
            settings = parse_settings(document("http://b:1", cache=str(cache)), "test", {}, ask_broker)
        assert settings.group.hash_count == 8
        assert [(line["event"], line["path"]) for line in told] == [("group_cache_not_written", str(cache))]
    assert list(tmp_path.iterdir()) == []


def test_a_power_failure_leaves_the_cache_of_this_start_or_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On some file systems, a name that is given to a file may get to the disk before what is in it."""

    async def read(_: Settings) -> str:
        return written()

    monkeypatch.setattr("lbg_runtime.admin.stored._read_text", read)
    on_disk: list[tuple[int, bytes]] = []
    replace_file = Path.replace

    def sync(file: int) -> None:
        on_disk.append((os.fstat(file).st_ino, os.pread(file, 10_000, 0)))

    def replaced(path: Path, target: Path) -> Path:
        assert on_disk == [(path.stat().st_ino, path.read_bytes())]
        return replace_file(path, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", replaced)
    cache = tmp_path / "orders.json"
    parse_settings(document("http://b:1", cache=str(cache)), "test", {}, ask_broker)
    assert cache.exists()


def test_a_link_to_itself_in_the_place_of_the_cache_gives_way_to_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def read(_: Settings) -> str:
        return written()

    monkeypatch.setattr("lbg_runtime.admin.stored._read_text", read)
    cache = tmp_path / "orders.json"
    cache.symlink_to(cache)
    parse_settings(document("http://b:1", cache=str(cache)), "test", {}, ask_broker)
    assert json.loads(cache.read_bytes())["marker"] == written()


@pytest.mark.real_time
async def test_what_cannot_be_read_is_one_line() -> None:
    async with serve() as server:
        for group, reader, words in (
            ({}, "reader", "group.name: no group orders is stored on the broker; expected one that `lbg group create`"),
            ({}, "stranger", "semp: GET .*/SEMP/v2/config/msgVpns/default/jndiQueues/lbg%2Forders: UNAUTHORIZED"),
            ({}, "nobody", "semp: GET .*HTTP 401.*; expected an account that may read the VPN"),
        ):
            with pytest.raises(ConfigError, match=words) as caught:
                await ask(document(server.url, reader, **group))
            assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"group": {"name": "o", "from": "semp", "hash_count": 8}},
            "group.hash_count: given with from: semp; expected",
        ),
        ({"semp": None}, "semp: not set, with group.from: semp; expected an account that may read"),
        ({"group": {"name": "o", "from": "else", **GROUP}}, "group.from: 'else'; expected one of file or semp"),
        ({"group": {"from": "semp"}}, "group.name: not set"),
        ({"dispatch": {"runners": 0}}, "dispatch.runners: 0; expected at least 1"),
    ],
)
def test_nobody_is_asked_while_the_rest_is_wrong(changes: dict[str, Any], words: str) -> None:
    def never(_: Settings) -> dict[str, object]:
        raise AssertionError

    wrong = {**document("http://b:1"), **changes}
    with pytest.raises(ConfigError) as caught:
        parse_settings({name: value for name, value in wrong.items() if value is not None}, "test", {}, never)
    assert str(problems_of(caught.value)[0]).startswith(f"test: {words}")


def test_groups_are_made_from_files() -> None:
    with pytest.raises(ConfigError, match=r"test: group\.from: semp; expected file"):
        parse_settings(document("http://b:1"), "test", {})
    with pytest.raises(ConfigError, match=r"group\.from: semp; expected file: who makes a group says"):
        spec_of(parse_settings(document("http://b:1"), "test", {}, lambda _: STORED))


def test_only_what_decides_where_keys_go_is_a_difference() -> None:
    group = settings_in_file().group
    assert differences(group, marker()) == ()
    assert differences(group, marker(QC=4)) == (), "after a re-striping members and publishers need no restart"
    found = differences(group, marker(HC=16, HP="x", HF="java_string", KY="shard"))
    assert [each.setting.removeprefix("group.") for each in found] == [
        "hash_prefix",
        "hash_count",
        "hash_function",
        "key",
    ]
    assert [each.setting for each in differences(group, None)] == ["group.name"]


class Middle:
    """No chance."""

    def uniform(self, a: float, b: float, /) -> float:
        return (a + b) / 2


async def test_a_change_is_told_once_and_so_is_its_end() -> None:
    answers: list[StoredGroup | Exception | None] = [
        marker(),
        marker(HC=16),
        marker(HC=16),
        SempUnreachable("u", "away"),
        marker(HC=32),
        marker(),
    ]
    told: list[list[str]] = []
    looks: list[float] = []

    async def read() -> StoredGroup | None:
        looks.append(asyncio.get_running_loop().time())
        answer = answers.pop(0)
        if not answers:
            ended.set()
        if isinstance(answer, Exception):
            raise answer
        return answer

    ended = asyncio.Event()
    began = asyncio.get_running_loop().time()
    watch = StoredGroupWatch(
        settings_in_file().group, read, Middle(), lambda found: told.append([each.theirs for each in found])
    )
    with structlog.testing.capture_logs() as lines:
        looking = asyncio.create_task(watch.run())
        await ended.wait()
        await asyncio.sleep(0)
    looking.cancel()
    assert told == [["16"], ["32"], []]
    said = [each["event"] for each in lines if each["event"] != "group_settings_not_read"]
    assert said == ["group_settings_changed", "group_settings_changed", "group_settings_as_before"]
    assert [round((look - began) / LOOK_S) for look in looks] == [1, 2, 3, 4, 5, 6]
    assert watch.found == ()


async def test_a_look_that_fails_for_whatever_reason_ends_nothing_and_is_warned_of_once() -> None:
    unreadable = ConfigError("semp.tls.trust_store", "/trust: no certificate in it", "a file")
    away = SempUnreachable("u", "away")
    answers: list[StoredGroup | Exception] = [unreadable, unreadable, away, marker(), away, away, marker(HC=16)]
    told: list[int] = []

    async def read() -> StoredGroup | None:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    ended = asyncio.Event()

    def note(found: tuple[Difference, ...]) -> None:
        told.append(len(found))
        ended.set()

    looking = asyncio.create_task(StoredGroupWatch(settings_in_file().group, read, Middle(), note).run())
    with structlog.testing.capture_logs() as lines:
        await ended.wait()
    looking.cancel()
    assert told == [1]
    levels = [each["log_level"] for each in lines if each["event"] == "group_settings_not_read"]
    assert levels == ["info", "warning", "info", "info", "warning"], "once an outage"


async def test_settings_of_a_file_are_not_watched() -> None:
    assert watch_of(settings_in_file(), Middle()) is None
    assert watch_of(parse_settings(document("http://b:1"), "test", {}, lambda _: STORED), Middle()) is not None


async def test_what_is_watched_is_what_the_broker_has_stored_of_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [written(), written(HC=16), None]
    told: list[list[str]] = []
    ended = asyncio.Event()

    async def read(_: Settings) -> str | None:
        return texts.pop(0)

    def note(found: tuple[Difference, ...]) -> None:
        told.append([each.setting for each in found])
        if not texts:
            ended.set()

    monkeypatch.setattr("lbg_runtime.admin.stored._read_text", read)
    stored = {"hash_prefix": "h", "hash_count": 8, "queue_count": 2, "hash_function": "crc32", "key": "topic_level:1"}
    watch = watch_of(parse_settings(document("http://b:1"), "test", {}, lambda _: stored), Middle(), note)
    assert watch is not None
    looking = asyncio.create_task(watch.run())
    await ended.wait()
    looking.cancel()
    assert told == [["group.hash_count"], ["group.name"]]


async def test_a_member_shows_what_was_changed_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Watch:
        found = differences(settings_in_file().group, marker(HC=16, QC=4))

        async def run(self) -> None:
            await asyncio.Event().wait()

    settings = parse_settings(document("http://b:1"), "test", {}, lambda _: STORED)
    handlers = Handlers()
    handlers.handler("a/>")(_nothing)
    app = App(handlers, settings)
    monkeypatch.setattr("lbg_runtime.runtime.app.watch_of", lambda *_: Watch())
    async with app._settings_watched() as changed:
        assert changed() == Watch.found != ()
    monkeypatch.undo()
    async with App(handlers, settings_in_file())._settings_watched() as changed:
        assert changed() == ()


class _BrokenWatch:
    found: tuple[Difference, ...] = ()

    def __init__(self, *_: Any) -> None:
        pass

    async def run(self) -> None:
        raise InvariantViolated("nobody foresaw this")


async def test_a_member_reports_looks_that_end_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers = Handlers()
    handlers.handler("a/>")(_nothing)
    monkeypatch.setattr("lbg_runtime.runtime.app.watch_of", _BrokenWatch)
    with structlog.testing.capture_logs() as lines:
        async with App(handlers, settings_in_file())._settings_watched():
            await asyncio.sleep(1)
    assert [(each["event"], each["log_level"]) for each in lines] == [("group_settings_not_watched", "error")]


async def test_a_publisher_does_not_go_on_unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbg_runtime.admin.stored.watch_of", _BrokenWatch)
    sending = anyio.CancelScope()

    async def send() -> None:
        async with stopped_by_changes(settings_in_file(), sending.cancel):
            with sending:
                await asyncio.sleep(1)

    with pytest.raises(InvariantViolated, match="nobody foresaw this"):
        await send()
    assert sending.cancelled_caught


async def _nothing(message: Message) -> None:
    pass


async def test_a_publisher_stops_before_it_sends_keys_elsewhere_than_others(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_in_file()
    for changes, names in (({"QC": 4}, []), ({"HC": 16}, ["group.hash_count"])):

        class Watch:
            def __init__(self, *given: Any, found: tuple[Difference, ...]) -> None:
                self._found, self._on_changed = found, given[2]

            async def run(self) -> None:
                self._on_changed(self._found)

        found = differences(settings.group, marker(**changes))
        monkeypatch.setattr("lbg_runtime.admin.stored.watch_of", partial(Watch, found=found))
        sending = anyio.CancelScope()
        told: list[str] = []
        try:
            async with stopped_by_changes(settings, sending.cancel):
                with sending:
                    await asyncio.sleep(1)
        except UserError as error:
            told.append(error.where)
        assert told == names
        assert sending.cancelled_caught is bool(names)
