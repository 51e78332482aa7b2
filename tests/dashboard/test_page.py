"""The live page in a real browser: what it shows, what clicks and keys do, and what it looks like.

Screenshots of each scene are kept in the test's folder (`pytest --basetemp=DIR` says where that is). More than 400
lines, as the browser and the member that tells it stories are those of all of them.
"""

import asyncio
import itertools
import random
import re
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest

from lbg_runtime.config.listen_address import ListenAddress
from lbg_runtime.core.group.control_messages import KeySight, LaneHead, LastHandled, LastOutcome, ParkingWait
from lbg_runtime.core.group.membership_timing import MembershipTiming
from lbg_runtime.core.group.placement import Placement
from lbg_runtime.core.lanes import LaneStage
from lbg_runtime.dashboard.board import GroupBoard
from lbg_runtime.dashboard.feed import Figures, Sight
from lbg_runtime.model.hashing import HashFunction
from lbg_runtime.model.ids import MemberId
from lbg_runtime.publisher.hashed import HashedPublisher
from lbg_runtime.runtime.clock import now_ms
from lbg_runtime.transport.memory.transport import MemoryTransport
from tests.addresses import OWN_HOST
from tests.dashboard.words import ACTIVE, STANDBY, Speaker, heartbeats_of_a_later_version, queue
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.real_time

SCHEMES = ("light", "dark")
TOKEN = "a-token"

CARDS = "[...document.querySelectorAll('#members button')].map((one) => one.getAttribute('aria-label'))"
PILLS = "[...document.querySelectorAll('#queues button')].map((one) => one.getAttribute('aria-label'))"
FED = "[...document.querySelectorAll('#lines .fed')].map((one) => [one.dataset.queue, one.dataset.member])"
LINK = "document.getElementById('link').textContent"
NOTICE = "document.getElementById('notice').textContent"
CHOSEN = "document.getElementById('grid').getAttribute('aria-activedescendant')"
KEPT = "[...document.querySelectorAll('.kept')].map((one) => one.id || one.querySelector('b').textContent)"
MOVES = "[...document.querySelectorAll('#moves li:not(.empty)')].map((one) => one.innerText.replace(/\\s+/g, ' '))"


async def halved(group):
    """Until both members have their share."""
    share = group.queues // 2
    await group.trial.until(
        lambda: sorted(group.trial.active().values()) == ["a"] * share + ["b"] * share, within_s=PATIENCE_S
    )


@asynccontextmanager
async def page_of(stage, browser, *members, **options):
    """The page of a group of one or two members, each with its share of the queues; no script of it may fail."""
    async with stage() as group:
        await group.start(*members)
        await (halved(group) if len(members) == 2 else group.all_fed())
        await browser.open(await group.show(), **options)
        await browser.until(f"{FED}.length === 4")
        yield group
        assert browser.errors == []


async def test_the_picture_shows_members_queues_and_who_is_fed(stage, browser, tmp_path):
    async with stage() as group:
        await group.start("a", "b")
        await halved(group)
        await browser.open(await group.show(), prefers_color_scheme="light")
        cards = await browser.until(f"{CARDS}.length === 2 && {CARDS}")
        assert all(card.startswith(f"member {name}, active, 2 queues") for card, name in zip(cards, "ab", strict=True))
        assert await browser.until(f"{FED}.length") == 4
        for index, owner in group.trial.active().items():
            assert f"orders/{index}, owner {owner}, at home" in (await browser.evaluate(PILLS))[index]
        for scheme in SCHEMES:
            await browser.prefer(prefers_color_scheme=scheme)
            await browser.screenshot(tmp_path / f"four-queues-{scheme}.png")
        assert await browser.evaluate(LINK) == "live"
        assert await browser.evaluate("document.title") == "orders · lbg"
        assert browser.errors == []


async def test_members_that_are_not_understood_are_told_in_a_line(stage, browser):
    async with stage() as group:
        await group.start("a")
        await browser.open(await group.show())
        await browser.until(f"{CARDS}.length === 1")
        async with heartbeats_of_a_later_version(group.trial.broker, group.settings.group.control_topic_name):
            notice = await browser.until(f"{NOTICE}.includes('not understood') && {NOTICE}")
        assert "members are not understood: they speak control messages of version 2" in notice
        await browser.until(f"!{NOTICE}.includes('not understood')")


MANY_MOVES = """(async () => {
  const { known, take, WINDOW_MS } = await import(document.scripts[0].src);
  const end = performance.now() - known.offset;
  const at = (n) => end - (9_999 - n) * 1_000;
  const moves = [...Array(10_000).keys()].map((n) => [n + 1, at(n), n % 4, n % 2, 1 - n % 2, 'hand-back', 5]);
  take({ now: end, members: {}, queues: {}, moves });
  const ofQueues = [...known.byQueue.values()];
  return {
    listed: known.moves.map((one) => one.number),
    kept: Math.max(...ofQueues.map((each) => each.length)),
    before: ofQueues.map((each) => each.filter((one) => one.at < end - WINDOW_MS).length),
  };
})()"""


async def test_a_page_that_is_shown_for_long_keeps_no_more_moves_than_it_shows(stage, browser):
    async with page_of(stage, browser, "a", "b"):
        found = await browser.evaluate(MANY_MOVES)
        assert found["listed"] == list(range(10_000 - 79, 10_001))
        # Two minutes of them, one in four seconds, and the one before, which says who had the queue at their begin.
        assert found["kept"] <= 32
        assert all(1 <= count <= 2 for count in found["before"])


WHOLE = r"""const { take } = await import(document.scripts[0].src);
  const reader = (await fetch('v1/feed')).body.getReader();
  const told = new TextDecoder().decode((await reader.read()).value);
  await reader.cancel();
  const whole = JSON.parse(told.split('\n\n')[0].slice('data: '.length));"""
"""What the page was told first, for a script that goes on from there."""

MOVES_OF_TWO_SERVERS = f"""(async () => {{
  {WHOLE}
  return [0, 1].map((queue) => {{
    take({{ ...whole, moves: [[1, whole.now, queue, 0, 0, 'stop', 5]] }});
    return [...document.querySelectorAll('#moves li b')].map((one) => one.textContent);
  }});
}})()"""


async def test_a_server_that_was_started_anew_has_its_own_moves_listed(stage, browser):
    async with page_of(stage, browser, "a"):
        (first,), (second,) = await browser.evaluate(MOVES_OF_TWO_SERVERS)
        assert (first.split()[0], second.split()[0]) == ("orders/0", "orders/1")


NOTICES_WITHOUT_HOMES = f"""(async () => {{
  {WHOLE}
  return ['active', 'gone', 'left'].map((presence) => {{
    const members = structuredClone(whole.members);
    for (const row of Object.values(members)) row[1] = presence;
    take({{ ...whole, members, meta: {{ ...whole.meta, placed: false }} }});
    return document.getElementById('notice').textContent;
  }});
}})()"""


async def test_members_that_are_gone_are_not_said_to_disagree(stage, browser):
    async with page_of(stage, browser, "a"):
        active, gone, left = await browser.evaluate(NOTICES_WITHOUT_HOMES)
        assert active == "members do not agree yet on who is there: homes are those of before"
        assert (gone, left) == ("", "")


RESTRIPING = f"""(async () => {{
  {WHOLE}
  const notices = [];
  const show = (now, restriping) => {{
    const meta = restriping === undefined ? {{}} : {{ meta: {{ ...whole.meta, restriping }} }};
    take({{ now, members: {{}}, queues: {{}}, moves: [], ...meta }});
    notices.push(document.getElementById('notice').textContent);
  }};
  show(whole.now, [4, 6, 4, 8]);
  show(whole.now + 100_000);
  show(whole.now + 100_000, [4, 6, 5, 8]);
  show(whole.now + 200_000);
  show(whole.now + 200_000, null);
  return notices;
}})()"""

RESTRIPING_AT_ANOTHER_SERVER = f"""(async () => {{
  {WHOLE}
  const meta = {{ ...whole.meta, restriping: [4, 6, 4, 8] }};
  return [whole.now, whole.now + 5_000_000].map((now) => {{
    take({{ ...whole, now, meta }});
    return document.getElementById('notice').textContent;
  }});
}})()"""


async def test_a_re_striping_that_stands_still_is_told_with_what_ends_it(stage, browser):
    async with page_of(stage, browser, "a"):
        begun, stuck, goes_on, stuck_again, over = await browser.evaluate(RESTRIPING)
        assert begun == "re-striping from 4 to 6 queues: 4 of 8 shards have left"
        remedy = ", none for 2 min; if nobody runs it, lbg group restripe --queues 6 ends it"
        assert stuck == begun + remedy
        assert goes_on == begun.replace("4 of 8", "5 of 8")
        assert stuck_again == goes_on + remedy
        assert over == ""


async def test_a_server_that_has_another_clock_than_the_one_before_has_a_re_striping_stand_no_longer(stage, browser):
    async with page_of(stage, browser, "a"):
        told = "re-striping from 4 to 6 queues: 4 of 8 shards have left"
        assert await browser.evaluate(RESTRIPING_AT_ANOTHER_SERVER) == [told, told]


LONG_NAMES = f"""(async () => {{
  {WHOLE}
  const members = structuredClone(whole.members);
  for (const row of Object.values(members)) row[0] += '-7f9c8d6b5-x2x9q.eu-central-1.worker.example.com';
  const meta = {{ ...whole.meta, group: 'payments-of-the-northern-region/settlement' }};
  take({{ ...whole, meta, members, moves: [[1, whole.now, 1, 0, 0, 'stop', 5]] }});
  const isWithin = (inner, outer) =>
    inner.width > 0 && outer.left <= inner.left && inner.right <= outer.right && inner.bottom <= outer.bottom;
  const numberOf = (name) => {{
    const words = name.lastChild.firstChild ?? name.lastChild;
    const range = document.createRange();
    range.setStart(words, words.length - 2);
    range.setEnd(words, words.length);
    return [range, name.closest('button, .row')];
  }};
  const numbers = [...document.querySelectorAll('#queues b, #rows .row > :first-child')].map(numberOf);
  const moves = document.getElementById('moves');
  const cells = [...moves.querySelectorAll('li > *')].map((cell) => [cell, moves]);
  const boxes = (all) => all.map(([one, within]) => [one.getBoundingClientRect(), within.getBoundingClientRect(), one]);
  const seen = (all) => boxes(all).filter(([inner, outer]) => isWithin(inner, outer)).map(([, , one]) => one);
  return {{ numbers: seen(numbers).map(String), cells: seen(cells).length }};
}})()"""


@pytest.mark.parametrize("width", [1_280, 720])
async def test_of_long_names_the_numbers_of_queues_and_the_times_of_moves_stay_in_sight(stage, browser, width):
    async with page_of(stage, browser, "a", width=width):
        found = await browser.evaluate(LONG_NAMES)
        assert found == {"numbers": ["/0", "/1", "/2", "/3"] * 2, "cells": 4}


async def test_a_kill_is_seen(stage, browser, tmp_path):
    async with stage() as group:
        await group.start("a", "b")
        await halved(group)
        await browser.open(await group.show())
        await browser.until(f"{FED}.length === 4 && {CARDS}.every((one) => one.includes('active, 2 queues'))")
        group.trial.sessions["b"].kill()
        await browser.until(
            f"{MOVES}.length === 2 && {CARDS}.some((one) => /^member b, (silent|gone), 0 queues/.test(one))"
            f" && {CARDS}.some((one) => one.startsWith('member a, active, 4 queues'))"
        )
        assert all("takeover" in move and "b → a" in move for move in await browser.evaluate(MOVES))
        assert "takeover" in await browser.until("document.getElementById('said').textContent")
        await browser.screenshot(tmp_path / "killed.png")
        await browser.until(f"{CARDS}.some((one) => one.startsWith('member b, gone'))")
        assert browser.errors == []


async def test_a_hand_back_is_seen(stage, browser, tmp_path):
    async with page_of(stage, browser, "a") as group:
        await group.start("b")
        await group.trial.until(lambda: "b" in group.trial.active().values(), within_s=PATIENCE_S)
        await browser.until(f"{MOVES}.length > 0")
        await browser.until(f"{MOVES}.length === 2 && {CARDS}.every((one) => one.includes('active, 2 queues'))")
        moves = await browser.evaluate(MOVES)
        assert all("hand-back" in move and "a → b" in move and " ms" in move for move in moves)
        await browser.screenshot(tmp_path / "handed-back.png")


async def test_clicks_keep_a_queue_or_a_member_in_view(stage, browser, tmp_path):
    async with page_of(stage, browser, "a", "b") as group:
        bright = "[...document.querySelectorAll('#lines .fed:not(.dim)')].map((one) => one.dataset.queue)"
        await browser.click("#queues li:nth-child(2) button")
        assert await browser.evaluate(KEPT) == ["orders/1", "row-1"]
        assert await browser.evaluate(bright) == ["1"]
        await browser.screenshot(tmp_path / "kept-queue.png")
        await browser.click("#members li:nth-child(1) button")
        owned = sorted(str(index) for index, owner in group.trial.active().items() if owner == "a")
        await browser.hover(5, 5)
        assert sorted(await browser.evaluate(bright)) == owned
        await browser.click("#members li:nth-child(1) button")
        await browser.hover(5, 5)
        await browser.evaluate("document.activeElement.blur()")
        assert (await browser.evaluate(KEPT), len(await browser.evaluate(bright))) == ([], 4)
        await browser.click("#rows .row[data-queue='3']")
        assert await browser.evaluate(KEPT) == ["orders/3", "row-3"]


async def test_everything_can_be_reached_by_keys(stage, browser):
    async with page_of(stage, browser, "a", "b"):
        focus = "document.activeElement.id || document.activeElement.innerText.trim().split('\\n')[0]"
        stops = []
        for _ in range(7):
            await browser.press("Tab")
            stops.append(str(await browser.evaluate(focus)).split()[0])
        assert stops == ["Skip", "orders/0", "a", "key", "Why", "moves", "grid"]
        await browser.press("PageDown")
        await browser.press("ArrowUp")
        assert await browser.evaluate(CHOSEN) == "row-2"
        await browser.press("Enter")
        assert await browser.evaluate(KEPT) == ["orders/2", "row-2"]
        await browser.press("Escape")
        assert await browser.evaluate(KEPT) == []
        await browser.evaluate("document.querySelector('#queues button').focus()")
        await browser.press("ArrowDown", 2)
        assert await browser.evaluate(focus) == "orders/2"
        await browser.press(" ")
        assert await browser.evaluate(KEPT) == ["orders/2", "row-2"]
        await browser.press("/")
        assert await browser.evaluate(focus) == "key"


async def test_a_key_is_searched_for_by_typing_it(stage, browser, tmp_path):
    release = asyncio.Event()

    async def work(message):
        await release.wait()

    async with stage() as group:
        await group.start("a", work=work)
        await group.all_fed()
        session = MemoryTransport(group.trial.broker, "publisher")
        await session.open()
        shape = group.settings.group.shape()
        async with HashedPublisher(session, shape, HashFunction.CRC32, publisher_id="p") as publisher:
            for _ in range(3):
                sent = await publisher.publish("orders/new", b"x", key="4711 <b>")
        await browser.open(await group.show())
        await browser.until(f"{FED}.length === 4")
        await browser.press("/")
        await browser.type("4711 <b>")
        await browser.press("Enter")
        found = await browser.until("document.querySelector('#found dl')?.innerText")
        for words in (
            "4711 <b>",
            f"{sent.shard}, in orders/{sent.shard % 4}",
            "a, active",
            "number 1",
            "attempt 1 runs",
            "2 messages",
        ):
            assert words in found
        assert await browser.evaluate(KEPT) == [f"orders/{sent.shard % 4}", f"row-{sent.shard % 4}"]
        await browser.screenshot(tmp_path / "found.png")
        await browser.press("/")
        await browser.type("\u200b")
        await browser.press("Enter")
        assert "printable" in await browser.until("document.querySelector('#found .bad')?.innerText")
        release.set()
        await session.close()
        (refused,) = browser.errors
        assert "400" in refused, "which the browser itself notes"


async def test_a_search_tells_of_a_key_that_is_parked_and_of_what_is_to_be(stage, browser, monkeypatch):
    async with stage("a") as group:
        url = await group.show()
        (answer,) = await group.watch.why("k")
        head = LaneHead(LaneStage.DELAYED, 0, False, 3, 40, None, None)
        parked = replace(answer, sight=KeySight(0, 2, head, None))

        async def why(key):
            return [parked]

        monkeypatch.setattr(group.watch, "why", why)
        await browser.open(url)
        await browser.until(f"{FED}.length === 4")
        await browser.press("/")
        await browser.type("k")
        await browser.press("Enter")
        found = await browser.until("document.querySelector('#found dl')?.innerText")
        for words in ("2 messages, and what comes is parked too", "number 3", "not handled: it is to be parked"):
            assert words in found
        assert "its owner has nothing of it" not in found


async def test_a_search_tells_what_lbg_why_tells(stage, browser, monkeypatch):
    async with stage("a") as group:
        url = await group.show()
        (answer,) = await group.watch.why("k")
        head = LaneHead(LaneStage.DELAYED, 2, False, 3, 40, 30, None, "orders/new", "ValueError: no such shop")
        gone = LastHandled(2, 2, 13_000, LastOutcome.ERROR_QUEUE)
        told = {
            "stopped": replace(answer, sight=KeySight(0, 0, head, gone), is_stopped=True),
            "waits": replace(answer, wait=ParkingWait(43_210, "Queue Shutdown")),
        }

        async def why(key):
            return [told[key]]

        monkeypatch.setattr(group.watch, "why", why)
        await browser.open(url)
        await browser.until(f"{FED}.length === 4")
        found = {}
        for key in told:
            await browser.press("/")
            await browser.type(key)
            await browser.press("Enter")
            searched = f"document.querySelector('#found dd')?.innerText === {key!r}"
            found[key] = await browser.until(f"{searched} && document.querySelector('#found dl').innerText")
            await browser.press("Escape")
        for words in (
            "nothing of any key of its queue is started",
            "orders/new",
            "ValueError: no such shop",
            "last, not handled\nnumber 2, moved to the error queue 13.0 s ago, after 2 attempts",
        ):
            assert words in found["stopped"]
        assert "until it is: Queue Shutdown" in found["waits"]
        assert "its owner has nothing of it" not in found["waits"], "nobody knows that"


async def test_a_page_behind_a_token_asks_for_it(stage, browser):
    async with stage(token=TOKEN) as group:
        await group.start("a")
        await group.all_fed()
        await browser.open(await group.show(token=TOKEN))
        await browser.until(f"{LINK} === 'a token is needed'")
        await browser.type("wrong")
        await browser.press("Enter")
        await browser.until(f"{LINK} === 'the token was refused'")
        await browser.type(TOKEN)
        await browser.click("#token button")
        await browser.until(f"{FED}.length === 4")
        assert {error.partition(" ")[0] for error in browser.errors} == {"Failed"}, "the answers with 401"


async def test_a_page_whose_server_is_gone_says_so_and_comes_back(stage, browser, tmp_path):
    async with stage("a") as group:
        await browser.open(await group.show(host=OWN_HOST))
        await browser.until(f"{FED}.length === 4")
        group.watch._hearing_changed(False)
        await browser.until(f"{LINK} === 'not heard: the broker is out of reach, or refuses'")
        group.watch._hearing_changed(True)
        await browser.until(f"{LINK} === 'live'")
        port = group.port
        await group.server.__aexit__(None, None, None)
        await browser.until(f"{LINK}.startsWith('connection lost')")
        assert await browser.evaluate("document.body.classList.contains('stale')")
        await browser.screenshot(tmp_path / "lost.png")
        # Another server in its place, as after a restart.
        group.watch.has_ended, group.watch._news = False, asyncio.Event()
        group.server = type(group.server)(
            group.watch, group.settings.group.shape(), HashFunction.CRC32, ListenAddress(OWN_HOST, port), None
        )
        async with group.server:
            await browser.until(f"{LINK} === 'live' && {FED}.length === 4")


# -- many queues, without members: a board that a test writes on


def crowd(queues, members):
    """What so many members of so many queues say, each with its share, and where they belong: some not at home."""
    speakers = [Speaker(f"member-{number}") for number in range(members)]
    names = [queue(index) for index in range(queues)]
    homes = {
        name: tuple(speakers[(index + step) % members].name for step in range(3)) for index, name in enumerate(names)
    }
    board = GroupBoard(MembershipTiming())
    chance = random.Random(5)
    for place, speaker in enumerate(speakers):
        flows = {}
        for index in range(queues):
            owner = index % members if index % 7 else (index + 1) % members
            if owner == place:
                flows[index] = ACTIVE
            elif place in {(index + step) % members for step in range(3)}:
                flows[index] = STANDBY
        board.hear(speaker.beat(flows, in_flight=chance.randrange(4)), 0)
    rates = {index: chance.uniform(0, 90) for index in range(queues)}
    depths = {name: chance.choice((0, 3, 40, 2_000)) for name in names}
    placement = Placement({name: tuple(map(MemberId, ranked)) for name, ranked in homes.items()})
    figures = Figures(rates, keys_parked=3)
    return board, Sight(names, placement, depths, is_connected=True, striping=None, figures=figures)


async def crowded(stage_group, board, sight):
    """Show what the board says in the place of what would be heard."""
    url = await stage_group.show()
    watch = stage_group.watch
    watch._board, watch._sight, watch._seen_changes = board, sight, board.changes
    watch._find_homes = lambda picture: (sight.queues, sight.placement)
    # Nobody speaks, which is no silence here.
    watch._board.tick = lambda now_ms: None
    watch._rates = SimpleNamespace(figures=lambda now_ms: sight.figures)
    watch._update()
    return url


@pytest.mark.parametrize(("queues", "members"), [(1, 1), (16, 3), (64, 6), (65, 4), (1_000, 12)])
async def test_it_is_readable_with_one_queue_and_with_a_thousand(stage, browser, tmp_path, queues, members):
    board, sight = crowd(queues, members)
    async with stage(queues=queues) as group:
        await browser.open(await crowded(group, board, sight), height=1_000)
        is_map = queues > 64
        await browser.until(f"{CARDS}.length === {members}")
        assert await browser.text("#parked") == "3"
        assert await browser.evaluate("document.querySelectorAll('#queues button').length") == (0 if is_map else queues)
        assert await browser.evaluate("document.getElementById('grid').getAttribute('aria-rowcount')") == str(
            queues + 1
        )
        assert await browser.evaluate("document.querySelectorAll('#rows .row').length") <= 25, "only those in view"
        for scheme, width in itertools.product(SCHEMES, (1_280, 720)):
            await browser.resize(width, 1_000)
            await browser.prefer(prefers_color_scheme=scheme)
            # So that the picture is drawn anew for the width.
            await browser.evaluate(
                "new Promise((next) => requestAnimationFrame(() => requestAnimationFrame(() => next(0))))"
            )
            await browser.screenshot(tmp_path / f"queues-{queues}-{scheme}-{width}.png")
            wide = await browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert wide, f"it does not fit {width}"
        await browser.resize(1_280, 1_000)
        await browser.evaluate("document.getElementById('grid').focus()")
        await browser.press("End")
        assert await browser.evaluate(CHOSEN) == f"row-{queues - 1}"
        assert f"orders/{queues - 1}" in await browser.text(f"#row-{queues - 1}")
        assert browser.errors == []


@pytest.mark.parametrize("queues", [8, 200])
async def test_queues_that_stand_still_are_told_with_why_and_since_when_until_they_go_on(
    stage, browser, tmp_path, queues
):
    board, sight = crowd(queues, 2)
    owners = {index: MemberId(board.queues[queue(index)].owner) for index in range(6)}
    still = {(owners[index], index): (None, None) for index in (2, 3, 4, 5)}
    async with stage(queues=queues) as group:
        still[owners[1], 1] = ("Queue Shutdown", now_ms() - 43_210)
        flowing, standing = sight.figures, replace(sight.figures, standing_still=still)
        await browser.open(await crowded(group, board, replace(sight, figures=standing)))
        notice = await browser.until(f"{NOTICE}.includes('waits') && {NOTICE}")
        waits, *stopped, rest = notice.split(" · ")
        assert re.fullmatch(
            rf"orders/1 of {owners[1]} waits for its parking queue, for 4\d\.\d s: Queue Shutdown", waits
        )
        why = "has stopped: queue_stopped in its log says why"
        assert stopped == [f"orders/{index} of {owners[index]} {why}" for index in (2, 3)]
        assert rest == "2 queues more that stand still"
        assert await browser.evaluate("document.getElementById('notice').className") == "bad"
        if queues == 8:
            moving = "[...document.querySelectorAll('#lines .traffic, #lines .moving')].map((one) => one.dataset.queue)"
            assert {"1", "2", "3", "4", "5"}.isdisjoint(await browser.evaluate(moving))
            assert await browser.evaluate(moving)
        pills = await browser.evaluate(PILLS)
        for index, word in ((0, None), (1, ", waits"), (2, ", stopped")):
            for told in (await browser.text(f"#row-{index}"), *pills[index : index + 1]):
                assert [each for each in (", waits", ", stopped") if each in told] == ([word] if word else [])
        await browser.screenshot(tmp_path / f"standing-still-{queues}.png")
        group.watch._rates.figures = lambda now_ms: flowing
        await browser.until(f"{NOTICE} === '' && !/waits|stopped/.test(document.getElementById('rows').innerText)")
        assert browser.errors == []


async def test_a_click_on_the_map_chooses_its_queue(stage, browser):
    board, sight = crowd(200, 3)
    async with stage(queues=200) as group:
        await browser.open(await crowded(group, board, sight))
        await browser.until(f"{CARDS}.length === 3")
        await browser.evaluate("document.getElementById('map').scrollIntoView()")
        await browser.click("#map")
        (row,) = await browser.evaluate(KEPT)
        assert await browser.evaluate(CHOSEN) == row
        assert row in (await browser.evaluate("[...document.querySelectorAll('#rows .row')].map((one) => one.id)"))


async def test_who_cannot_see_it_is_told_the_same(stage, browser):
    board, sight = crowd(8, 2)
    async with stage(queues=8) as group:
        await browser.open(await crowded(group, board, sight))
        await browser.until(f"{CARDS}.length === 2")
        found = await browser.accessible()
        roles = {role for role, _ in found}
        assert {"grid", "row", "gridcell", "columnheader", "button", "searchbox", "status", "list", "heading"} <= roles
        names = [name for _, name in found]
        for start in (
            "member member-0, active, ",
            "orders/0, owner member-1, ",
            "Where is a key?",
            "Moves, the newest",
        ):
            assert any(name.startswith(start) for name in names), start
        for role, name in found:
            if role in ("button", "searchbox", "textbox", "grid"):
                assert name, f"a {role} without a name"


async def test_nothing_moves_for_who_wants_no_motion(stage, browser):
    board, sight = crowd(8, 2)
    running = "document.getAnimations().length"
    async with stage(queues=8) as group:
        url = await crowded(group, board, sight)
        await browser.open(url, prefers_reduced_motion="no-preference")
        await browser.until(f"{running} > 0")
        await browser.prefer(prefers_reduced_motion="reduce")
        await browser.until(f"{running} === 0")


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_text_has_enough_contrast(stage, browser, scheme):
    board, sight = crowd(8, 10)
    async with stage(queues=8) as group:
        await browser.open(await crowded(group, board, sight), prefers_color_scheme=scheme)
        await browser.until(f"{CARDS}.length === 10")
        ratios = await browser.evaluate(CONTRAST)
        assert ratios, "nothing was found to measure"
        assert {name: round(ratio, 2) for name, ratio in ratios.items() if ratio < (3 if "line" in name else 4.5)} == {}


CONTRAST = """(() => {
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const part = (one) => (one <= 10 ? one / 255 / 12.92 : ((one / 255 + 0.055) / 1.055) ** 2.4);
  const light = (colour) => {
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = canvas.getImageData(0, 0, 1, 1).data;
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const ratio = (one, other) => {
    const [dark, bright] = [light(one), light(other)].sort((a, b) => a - b);
    return (bright + 0.05) / (dark + 0.05);
  };
  const ground = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const colour = getComputedStyle(one).backgroundColor;
      if (colour !== 'rgba(0, 0, 0, 0)') return colour;
    }
  };
  const found = {};
  const words = 'h1, h2, p, dt, dd, b, small, em, button, .legend li, .row span, #moves li, kbd';
  for (const one of document.querySelectorAll(words)) {
    if (!one.textContent.trim() || one.closest('[hidden], .unseen, .skip')) continue;
    const name = `${one.tagName}.${one.className}#${one.id}`;
    found[name] = Math.min(found[name] ?? 99, ratio(getComputedStyle(one).color, ground(one)));
  }
  const panel = ground(document.querySelector('.panel'));
  for (const one of document.querySelectorAll('#lines .fed')) {
    const { stroke } = getComputedStyle(one);
    found[`line ${stroke}`] = ratio(stroke, panel);
  }
  return found;
})()"""
