"""Kills `lbg validate --live --engine spark` in the middle of batches, again and again, while the journals grow, and
compares what it says in the end with what the kernel says in one process that has seen the whole run.

    python -m tests.pipeline.spark.validator_kills --run faults --kills 20 --seed 1

Kinds of kills, and what counts as a live one, as in `kills.py`; a third of them is dealt to the batch that is run again
after the kill before. The journals are those of a made up group whose members crash, lose their flows and move queues;
`faults` puts violations into them all over the run. What is compared: how the run stands, and every finding, which
every process that goes on with the checkpoint has to tell exactly once.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path

import orjson

from lbg_runtime.cli.standing import as_object
from lbg_runtime.journal.follow import ALLOWED_DELAY_MS, RunFollower
from lbg_runtime.model.record import DispatchRecord
from lbg_runtime.validator.findings import Finding, Law, Standing
from lbg_runtime.validator.kernel import DEFAULT_ACK_WINDOW_MS
from lbg_runtime.validator.slices import SlicedExamination
from tests.pipeline.spark.kills import PATIENCE_S, Query
from tests.validator.changes import BREAKING, handled_once, resendable_messages
from tests.validator.history import STEPS, Step, World
from tests.validator.run_files import WALL_OFFSET_NS, Journal, Run, wall_us

LOOK_S, LOOKS = 0.1, 2_000
AFTERWARDS_US = 4 * ALLOWED_DELAY_MS * 1000
STEPS_FOR_A_START = 50
TRIES = 5
SHARE_OF_AGAIN = 1 / 3
EACH = 4
"""Faults of each kind that are spread over the run."""
ANYWHERE = ("settle_after_release", "clear_flag", "outlive_flow", "settle_in_next_epoch")
"""Changes of which the run gets one, wherever there is a place for it."""

Said = tuple[dict[str, object], Counter[str]]
"""How a run stands, and what was found."""
_Item = tuple[Journal, int, DispatchRecord]


class Growth:
    """A run's files, copied piece by piece in order of time, as its members would write them."""

    def __init__(self, whole: Path, growing: Path) -> None:
        self._growing = growing
        self._contents = {path.name: path.read_bytes() for path in sorted(whole.iterdir())}
        self._lines = {name: content.splitlines(keepends=True) for name, content in self._contents.items()}
        self._ends = {name: [0, *accumulate(map(len, lines))] for name, lines in self._lines.items()}
        self._moments = {name: list(_rising(name, lines)) for name, lines in self._lines.items()}
        self._length = dict.fromkeys(self._lines, 0)
        moments = [moment for own in self._moments.values() for moment in own if moment]
        self._first, self._last = min(moments), max(moments)

    def until(self, share: float) -> None:
        """Append what is written in so much of the run's time, half a line included; ledgers are there at once."""
        until = self._first + round((self._last - self._first) * share)
        for name, lines in self._lines.items():
            count = bisect_right(self._moments[name], until)
            half = len(lines[count]) // 2 if count < len(lines) else 0
            end = self._ends[name][count] + half
            if end > self._length[name]:
                with (self._growing / name).open("ab") as file:
                    file.write(self._contents[name][self._length[name] : end])
                self._length[name] = end

    @contextmanager
    def growing(self, first: float, last: float) -> Iterator[None]:
        """Goes on from one share to another meanwhile, so slowly that it lasts longer than any start."""
        over = threading.Event()

        def grow() -> None:
            for step in range(1, LOOKS + 1):
                if over.wait(LOOK_S):
                    return
                self.until(first + (last - first) * step / LOOKS)

        thread = threading.Thread(target=grow)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


class Validation(Query):
    """The validator on a folder that grows."""

    def __init__(self, growing: Path, checkpoint: Path) -> None:
        self.growing = growing
        command = [sys.executable, "-m", "lbg_runtime.cli", "validate", "--live", str(growing), "--engine", "spark"]
        super().__init__([*command, "--json", "--checkpoint", str(checkpoint)], checkpoint)

    def finish(self) -> Said:
        """Go on until all is judged that is there."""
        done = subprocess.run(
            [*self.command, "--for", "1s"],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        if done.returncode not in (0, 1, 3):
            raise RuntimeError(done.stderr)
        return orjson.loads(done.stdout), findings_in(done.stderr)


@dataclass
class Outcome:
    """What became of it."""

    growth: Growth
    validation: Validation
    expected: Said
    live: Counter[str] = field(default_factory=Counter)
    idle: Counter[str] = field(default_factory=Counter)
    """Kills that hit no batch."""
    wrong: list[str] = field(default_factory=list)

    def finish(self, judge: Callable[[Validation], Said]) -> None:
        """Let all be judged that is there, by `judge`, and then once more; what it says is compared."""
        self.growth.until(1)
        for name in ("what the last start says", "what one says that finds nothing new"):
            standing, found = judge(self.validation)
            if standing != self.expected[0]:
                self.wrong.append(f"{name}: {_differences(standing, self.expected[0])}")
            if found != self.expected[1]:
                self.wrong.append(f"{name}: lost {self.expected[1] - found}, too many {found - self.expected[1]}")


def kill_validators(
    folder: Path,
    run: Run,
    starts: Sequence[Sequence[str]],
    chance: random.Random,
    *,
    tries: int = 1,
) -> Outcome:
    """Start it again and again while the run grows, each time with these kills; it is then to be finished."""
    whole, growing = folder / "whole", folder / "growing"
    for each in (whole, growing):
        each.mkdir()
    run.write(whole)
    growth, validation = Growth(whole, growing), Validation(growing, folder / "checkpoint")

    outcome = Outcome(growth, validation, said_at_once(whole))
    pieces = (len(starts) + 1) * 2
    for number, kinds in enumerate(starts):
        first, last = ((2 * number + step) / pieces for step in (1, 2))
        growth.until(first)
        left, tries_left = list(kinds), tries
        while left and tries_left:
            tries_left -= 1
            told = folder / f"told-{number}-{tries_left}"
            with growth.growing(first, last), told.open("w") as errors:
                is_again = chance.random() < SHARE_OF_AGAIN
                live = validation.kill(left, chance, is_again=is_again, stdout=subprocess.DEVNULL, stderr=errors)
            outcome.wrong += _not_expected(told.read_text(), outcome.expected)
            outcome.live.update(live)
            outcome.idle.update(kind for kind in left if kind not in live)
            left = [kind for kind in left if kind not in live]
            sys.stderr.write(f"{dict(outcome.live)} in batches, {len(validation.batches('commits'))} batches done\n")
    return outcome


def said_at_once(folder: Path) -> Said:
    """The kernel in this process, on all the files."""
    follower, sliced = RunFollower(folder), SlicedExamination(DEFAULT_ACK_WINDOW_MS)
    news = follower.look()
    findings = sliced.feed(news.tables, news.until_ns)
    return said(sliced.standing, findings)


def said(standing: Standing, findings: Sequence[Finding]) -> Said:
    """As a program that reads it sees it."""
    told: dict[str, object] = orjson.loads(orjson.dumps(as_object(standing)))
    return told, Counter(f"{finding.law.value}: {finding.text}" for finding in findings)


def findings_in(told: str) -> Counter[str]:
    """Of what a process wrote on standard error."""
    laws = tuple(f"{law.value}: " for law in Law)
    return Counter(line for line in told.splitlines() if line.startswith(laws))


def made_run(seed: int, steps: int, *, has_faults: bool) -> Run:
    """A run of about six handlings a step."""
    chance = random.Random(seed)
    weights = [1 if step in (Step.CRASH, Step.JOIN) else 4 for step in STEPS]
    weights[STEPS.index(Step.PUBLISH)] = weights[STEPS.index(Step.HANDLE)] = 20
    run = World(seed).play(chance.choices(STEPS, weights, k=steps))
    # They leave some time later, so that nothing is too young to be judged in the end.
    for journal in run.journals:
        if journal.close is not None:
            journal.close = replace(journal.close, t=journal.close.t + AFTERWARDS_US)
    if has_faults:
        for put in (_swap, _repeat, _overlap):
            for _ in range(EACH):
                put(run, chance)
        for _, change in BREAKING:
            if change.__name__ in ANYWHERE:
                change(run)
    return run


def made_starts(count: int, chance: random.Random) -> list[list[str]]:
    """The kinds of each start: so many of each, one after another. Only a worker's leaves the start another."""
    starts = [[kind] for kind in ("driver", "tree") for _ in range(count)]
    chance.shuffle(starts)
    for place in chance.sample(range(len(starts)), count):
        starts[place].insert(0, "worker")
    return starts


def _swap(run: Run, chance: random.Random) -> None:
    """Two messages of a key change places."""
    pairs = [pair for pair in _neighbours(run) if pair[0][2].publisher == pair[1][2].publisher]
    (one, place, first), (other, other_place, second) = chance.choice(pairs)
    one.records[place] = replace(first, seq=second.seq)
    other.records[other_place] = replace(second, seq=first.seq)


def _repeat(run: Run, chance: random.Random) -> None:
    """A message comes again although it was settled."""
    resendable = resendable_messages(run)
    once = [each for each in handled_once(run) if (each[2].publisher, each[2].key, each[2].seq) not in resendable]
    journal, place, record = chance.choice(once)
    start, done = record.done_mono_ns + 100, record.done_mono_ns + 200
    again = replace(record, start_mono_ns=start, done_mono_ns=done, t_done=wall_us(done), redelivered=True)
    journal.records.insert(place + 1, again)


def _overlap(run: Run, chance: random.Random) -> None:
    """A handling lasts into the next one of its key; never for longer than a record may come late."""
    near = [
        (one, place, first, second.start_mono_ns + 1)
        for (one, place, first), (other, _, second) in _neighbours(run)
        if one is other
        and first.bind_epoch == second.bind_epoch
        and second.start_mono_ns - first.start_mono_ns < 2_000_000_000
    ]
    journal, place, record, done = chance.choice(near)
    settle = None if record.t_settle is None else wall_us(done) + 1
    journal.records[place] = replace(record, done_mono_ns=done, t_done=wall_us(done), t_settle=settle)


def _neighbours(run: Run) -> Iterator[tuple[_Item, _Item]]:
    last: dict[str | None, _Item] = {}
    for item in handled_once(run):
        if item[2].key in last:
            yield last[item[2].key], item
        last[item[2].key] = item


def _rising(name: str, lines: Sequence[bytes]) -> Iterator[int]:
    """When each line was written, on the run's clock; the ledgers' lines are there from the begin."""
    moment = 0
    for record in map(orjson.loads, lines if name.endswith(".member.jsonl") else ()):
        wall_ns = 1000 * record.get("t", record.get("t_start", 0)) - WALL_OFFSET_NS
        moment = max(moment, record.get("done_mono_ns", record.get("mono_ns", wall_ns)))
        yield moment
    yield from [0] * (0 if moment else len(lines))


def _not_expected(told: str, expected: Said) -> list[str]:
    """What a process that was killed should not have told."""
    return [f"told, and too often: {line}" for line in findings_in(told) - expected[1]]


def _differences(one: dict[str, object], other: dict[str, object]) -> dict[str, tuple[object, object]]:
    return {name: (value, other.get(name)) for name, value in one.items() if value != other.get(name)}


def main() -> None:
    """Prints what it did; exit code 1 where the verdict is not that of one process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--run", choices=["clean", "faults"], default="faults")
    parser.add_argument("--kills", type=int, default=20, help="of each kind, within a batch")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    told = parser.parse_args()
    chance = random.Random(told.seed)
    starts = made_starts(told.kills, chance)
    run = made_run(told.seed, STEPS_FOR_A_START * len(starts), has_faults=told.run == "faults")
    with tempfile.TemporaryDirectory(prefix="lbg-validator-kills-") as folder:
        outcome = kill_validators(Path(folder), run, starts, chance, tries=TRIES)
        outcome.finish(Validation.finish)
    handlings = sum(len(journal.dispatches) for journal in run.journals)
    print(  # noqa: T201  # a script of its own
        f"seed {told.seed}, {handlings} handlings, {outcome.expected[1].total()} findings: "
        f"live kills {dict(outcome.live)}, idle {dict(outcome.idle)}; wrong: {len(outcome.wrong)} {outcome.wrong[:5]}"
    )
    sys.exit(1 if outcome.wrong else 0)


if __name__ == "__main__":
    main()
