"""What a reader gets of a queue, whatever its members did: each message once, none lost, the order of each key kept."""

import random
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from lbg_runtime.model.errors import LandingRowsPruned
from lbg_runtime.pipeline.landing.lane import LaneWriter
from lbg_runtime.pipeline.landing.log import LandingLog
from lbg_runtime.pipeline.landing.prune import prune
from lbg_runtime.pipeline.spark.offsets import plan_end
from tests.pipeline.landing.landed import LogOnDisk, id_of, ids_of, rows

QUEUE = 3


@dataclass
class Handle:
    """One flow handle: what it was given and has not landed, what landed and is not known to the broker as settled."""

    name: str
    held: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    position: int = 0
    settling: list[tuple[str, int]] = field(default_factory=list)
    lane: LaneWriter | None = None


class Broker:
    """A queue of messages, fed to one handle at a time; the others are dead, or do not know yet that they are."""

    def __init__(self, chance: random.Random, log: LogOnDisk) -> None:
        self.chance = chance
        self.log = log
        self.queue: list[tuple[str, int]] = []
        self.times: dict[tuple[str, int], int] = {}
        self.settled: set[tuple[str, int]] = set()
        self.numbers: dict[str, int] = defaultdict(int)
        self.handles: list[Handle] = []
        self.landed: dict[str, list[str]] = defaultdict(list)
        """Ids by lane."""
        self.active = self._bind()
        self.zombies: list[Handle] = []
        self.now = 0

    def publish(self) -> None:
        for _ in range(self.chance.randint(1, 6)):
            key = self.chance.choice("abcde")
            self.numbers[key] += 1
            # One of the publishers has its clock wrong.
            self.times[key, self.numbers[key]] = self.now + (-40 if key == "a" else 0) + 50
            self.queue.append((key, self.numbers[key]))
        self.now += 1

    def deliver(self) -> None:
        for _ in range(self.chance.randint(1, 8)):
            if self.active.position == len(self.queue):
                return
            key, number = message = self.queue[self.active.position]
            self.active.position += 1
            if message not in self.settled:
                self.active.held[key].append(number)

    def land(self, handle: Handle) -> None:
        """One flush: the first of some keys, in any order."""
        keys = [key for key, numbers in handle.held.items() if numbers]
        self.chance.shuffle(keys)
        chosen = keys[: self.chance.randint(1, 4)]
        if not chosen:
            return
        if handle.lane is not None and self.chance.random() < 0.1:
            # As where a full log is to be pruned.
            handle.lane.close()
            handle.lane = None
        if handle.lane is None:
            handle.lane = self.log.lane(handle.name, segment_bytes=self.chance.choice([1, 3_000, 1 << 20]))
        landed = [(key, handle.held[key].pop(0)) for key in chosen]
        ids = [id_of(key, number, self.times[key, number]) for key, number in landed]
        handle.lane.append(rows(ids, t_land=self.now))
        self.landed[handle.lane.name] += ids
        handle.settling += landed

    def settle(self) -> None:
        """Settlements take effect in their order; some are on their way still."""
        count = self.chance.randint(0, len(self.active.settling))
        self.settled.update(self.active.settling[:count])
        del self.active.settling[:count]

    def move(self) -> None:
        """To a new handle; the old one's member may go on landing what it has."""
        self.settle()
        if self.chance.random() < 0.6:
            self.zombies.append(self.active)
        self.active = self._bind()

    def _bind(self) -> Handle:
        handle = Handle(f"m{len(self.handles)}")
        self.handles.append(handle)
        return handle

    def step(self) -> None:
        landing = [self._land_active, self._land_active, self._land_zombie]
        act = self.chance.choice(
            [self.publish, self.deliver, self.deliver, *landing, self.settle, self.settle, self.move]
        )
        act()

    def finish(self) -> None:
        while len(self.settled) < len(self.queue):
            self.deliver()
            self._land_active()
            self.settled.update(self.active.settling)
            self.active.settling.clear()

    def _land_active(self) -> None:
        self.land(self.active)

    def _land_zombie(self) -> None:
        if self.zombies:
            self.land(self.chance.choice(self.zombies))


def naive(
    broker: Broker, start: Mapping[str, int], end: Mapping[str, int], left: Mapping[str, int] | None = None
) -> list[str]:
    """The rule of `merge.py`, said in lists. `left`: rows before these are lost."""
    log = LandingLog(broker.log.root)
    lanes = sorted(broker.landed, key=lambda name: log.view(name).place)
    seen: set[str] = set()
    for name in lanes:
        seen.update(broker.landed[name][: start.get(name, 0)])
    found = []
    for name in lanes:
        for row in range(start.get(name, 0), end.get(name, 0)):
            row_id = broker.landed[name][row]
            if row_id not in seen and row >= (left or {}).get(name, 0):
                found.append(row_id)
            seen.add(row_id)
    return found


def assert_keys_in_order(ids: list[str]) -> None:
    numbers: dict[str, int] = defaultdict(int)
    for row_id in ids:
        number, _, key = row_id.partition(".")[2].split("/")
        assert int(number) == numbers[key] + 1, f"{key}: {number} after {numbers[key]}"
        numbers[key] = int(number)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    steps=st.integers(5, 120),
    often=st.sampled_from([0.02, 0.1, 0.4]),
    prunes=st.booleans(),
)
def test_each_message_comes_once_and_its_key_in_order_whatever_members_do(
    seed: int, steps: int, often: float, prunes: bool
) -> None:
    """`often`: how often a reader looks. `prunes`: what it has read may be pruned then."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, closing(LogOnDisk(Path(folder) / "log")) as log_on_disk:
        broker = Broker(chance, log_on_disk)
        log = LandingLog(log_on_disk.root)
        chain: list[Mapping[str, int]] = [{}]
        parts: list[list[str]] = []
        for step in range(steps + 1):
            if step == steps:
                broker.finish()
            else:
                broker.step()
            if step == steps or chance.random() < often:
                end = {name: extent.rows for name, extent in log.lanes().items()}
                while any(end[name] > chain[-1].get(name, 0) for name in end):
                    # In one part, or in several small ones.
                    if chance.random() < 0.5:
                        most = chance.choice([None, 1, 900, 5_000])
                        part = plan_end(chain[-1], end, log.pieces, log.cut, chance.randint(1, 9), most)
                        chain.append(part)
                    else:
                        chain.append(end)
                    parts.append(ids_of(log.read_queue(QUEUE, chain[-2], chain[-1])))
                if prunes and chance.random() < 0.5:
                    list(prune(log_on_disk.root, broker.now, clock_us=lambda: 1))
        everything = [row_id for part in parts for row_id in part]
        assert len(everything) == len(set(everything)) == len(broker.queue)
        assert_keys_in_order(everything)
        # Again, by somebody else, now that everything has landed.
        other = LandingLog(log_on_disk.root)
        for start, end, part in zip(chain, chain[1:], parts, strict=False):
            assert part == naive(broker, start, end)
            try:
                assert ids_of(other.read_queue(QUEUE, start, end)) == part
            except LandingRowsPruned:
                assert prunes


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_of_any_chain_of_offsets_each_message_is_in_exactly_one_part(seed: int) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, closing(LogOnDisk(Path(folder) / "log")) as log_on_disk:
        broker = Broker(chance, log_on_disk)
        for _ in range(60):
            broker.step()
        broker.finish()
        log = LandingLog(log_on_disk.root)
        last = {name: extent.rows for name, extent in log.lanes().items()}
        at = dict.fromkeys(last, 0)
        everything: list[str] = []
        while at != last:
            to = {name: chance.choice([at[name], chance.randint(at[name], rows)]) for name, rows in last.items()}
            if chance.random() < 0.1:
                to = last
            found = ids_of(log.read_queue(QUEUE, at, to))
            assert found == naive(broker, at, to)
            everything += found
            at = dict(to)
        assert sorted(everything) == sorted(id_of(*each, broker.times[each]) for each in broker.queue)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_what_is_left_comes_as_if_what_was_pruned_unread_had_come_in_its_place(seed: int) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, closing(LogOnDisk(Path(folder) / "log")) as log_on_disk:
        broker = Broker(chance, log_on_disk)
        log = LandingLog(log_on_disk.root)
        at: Mapping[str, int] = {}
        everything: list[str] = []
        for step in range(101):
            if step == 100:
                broker.finish()
            else:
                broker.step()
            if step < 100 and chance.random() < 0.9:
                continue
            list(prune(log_on_disk.root, broker.now - chance.randint(0, 5), clock_us=lambda: 1))
            extents = log.lanes()
            left = {name: extent.first_row for name, extent in extents.items()}
            end: Mapping[str, int] = {name: extent.rows for name, extent in extents.items()}
            if step < 100 and chance.random() < 0.5:
                most = chance.choice([None, 1, 900, 5_000])
                cut = partial(log.cut, skips_pruned=True)
                end = plan_end(at, end, log.pieces, cut, chance.randint(1, 9), most)
            found = ids_of(log.read_queue(QUEUE, at, end, skips_pruned=True))
            assert found == naive(broker, at, end, left)
            everything += found
            at = end
        assert len(everything) == len(set(everything))
        numbers: dict[str, int] = defaultdict(int)
        for row_id in everything:
            number, _, key = row_id.partition(".")[2].split("/")
            assert int(number) > numbers[key]
            numbers[key] = int(number)
