"""Whatever is damaged in a log: it is read as it was, or the damage is told; nothing is missing or twice silently.

Some damages are tried; `python -m tests.pipeline.landing.test_damage 1000` tries as many as it is told.
"""

import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from lbg_runtime.model.errors import LandingError
from lbg_runtime.pipeline.landing.log import LandingLog
from lbg_runtime.pipeline.landing.prune import prune
from lbg_runtime.pipeline.landing.verify import Grade, Walked, verify
from lbg_runtime.pipeline.replay import Selection, selected
from tests.pipeline.landing.landed import LogOnDisk, id_of, ids_of, rows

QUEUES = (1, 3)


def make(root: Path, chance: random.Random) -> None:
    """Three lives of each queue, the next of which lands again what the last had landed; the oldest rows are pruned."""
    log = LogOnDisk(root)
    t_land, numbers = 0, dict.fromkeys(QUEUES, 0)
    for life in range(1, 4):
        for queue in QUEUES:
            lane = log.lane("ab"[life % 2], life, queue, segment_bytes=chance.choice([3_000, 9_000]), handle=f"h{life}")
            numbers[queue] = max(0, numbers[queue] - 2)
            for _ in range(chance.randint(4, 9)):
                t_land += 1_000
                count = chance.randint(1, 3)
                ids = [id_of(f"k{queue}", numbers[queue] + each) for each in range(1, count + 1)]
                numbers[queue] += count
                if chance.random() < 0.3:
                    # Of another publisher.
                    ids.append(f"{t_land:013x}.!h{life}/{t_land}")
                lane.append(rows(ids, queue=queue, t_land=t_land))
    log.close()
    assert list(prune(root, t_land // 3, clock_us=lambda: t_land))


def flip(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def cut(path: Path, chance: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: chance.randrange(len(content))])


def clear(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    first = chance.randrange(len(content))
    content[first : first + 64] = bytes(len(content[first : first + 64]))
    path.write_bytes(content)


def grow(path: Path, chance: random.Random) -> None:
    path.write_bytes(path.read_bytes() + chance.randbytes(chance.choice([1, 64, 200])))


def copy(path: Path, chance: random.Random) -> None:
    """As another segment."""
    number = int(path.stem) if path.stem.isdecimal() else 0
    shutil.copy(path, path.with_name(f"{number + chance.choice([1, 3, 1_000]):012d}{path.suffix}"))


def copy_lane(path: Path, chance: random.Random) -> None:
    lane = path.parent
    queue = chance.choice(QUEUES)
    shutil.copytree(lane, lane.parents[1] / f"queue={queue:03d}" / f"{lane.name}{chance.choice(['.bak', '~'])}")


def link(path: Path, chance: random.Random) -> None:
    path.unlink()
    path.symlink_to(f"nowhere-{chance.random()}")


DAMAGES: tuple[Callable[[Path, random.Random], None], ...] = (flip, flip, flip, cut, clear, grow, copy, copy_lane, link)


def read(root: Path) -> tuple[dict[int, list[str]], list[str], bool]:
    """What readers get of each queue, what a replay does, and whether one of them is told of damage."""
    is_told = False
    found: dict[int, list[str]] = {queue: [] for queue in QUEUES}
    replayed: list[str] = []
    for queue in QUEUES:
        try:
            log = LandingLog(root)
            extents = log.lanes(queue)
            start = {name: extent.first_row for name, extent in extents.items()}
            for batch in log.read_queue(queue, start, {name: extent.rows for name, extent in extents.items()}):
                found[queue] += ids_of([batch])
        except (LandingError, OSError):
            is_told = True
    try:
        replayed += [each.row_id for each in selected(LandingLog(root), Selection())]
    except (LandingError, OSError):
        is_told = True
    return found, replayed, is_told


def grades(root: Path) -> set[Grade]:
    """Of what `verify` finds."""
    try:
        return {each.grade for each in verify(LandingLog(root), Walked())}
    except (LandingError, OSError):
        return {Grade.DAMAGE}


def check(folder: Path, seed: int) -> None:
    chance = random.Random(seed)
    make(folder, chance)
    whole, replayed, is_told = read(folder)
    assert not is_told
    assert not grades(folder)
    files = sorted(each for each in folder.rglob("*") if each.is_file() and each.parent.name.startswith("lane="))
    damaged, damage = chance.choice(files), chance.choice(DAMAGES)
    damage(damaged, chance)
    found, again, is_told = read(folder)
    where = f"seed {seed}: {damage.__name__} {damaged.relative_to(folder)}"
    if (found, again) != (whole, replayed):
        # The last entry of an index may be lost without an error: `verify` notes what it leaves.
        assert is_told or grades(folder) == {Grade.NOTE}, where
    if is_told:
        assert Grade.DAMAGE in grades(folder), where
        # Up to the damage all is as it was, so nobody who goes on later has lost or doubled anything.
        assert all(found[queue] == whole[queue][: len(found[queue])] for queue in QUEUES), where
        assert again == replayed[: len(again)], where


@pytest.mark.parametrize("seed", range(40))
def test_damage_is_told_or_changes_nothing(tmp_path: Path, seed: int) -> None:
    check(tmp_path / "log", seed)


if __name__ == "__main__":
    for number in range(int(sys.argv[1])):
        with TemporaryDirectory() as place:
            check(Path(place) / "log", number)
