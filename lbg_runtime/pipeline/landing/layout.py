"""Names and notes in the folder of a landing log, and which group may have it.

    landing.json                          the group, and an id of the log
    queue=003/                            one folder for each queue
      removed.lanes                       a line for each lane that is gone
      lane=<member>-<epoch>.<begin>/      one for each flow handle that landed something: its lane
        lane.json                         the lane; locked for as long as its writer lives
        000000000000.arrow, .index        a segment
        000000000000.ids                  what is left of a pruned segment

A lane has one writer, ever. Its folder appears at once, with its note in it, before anything is landed there.
"""

import errno
import fcntl
import os
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lbg_runtime.model.errors import LandingDamaged, UserError
from lbg_runtime.model.group import GroupShape
from lbg_runtime.pipeline.files import make_folder, read_whole, sync_folder, write_whole
from lbg_runtime.pipeline.landing.index import DAMAGE_REMEDY
from lbg_runtime.pipeline.landing.schema import FORMAT, check_format
from lbg_runtime.pipeline.landing.sealed import seal, unseal
from lbg_runtime.pipeline.landing.segment import DATA_SUFFIX, IDS_SUFFIX, INDEX_SUFFIX

GROUP_NOTE = "landing.json"
LANE_NOTE = "lane.json"
REMOVED_NOTES = "removed.lanes"

_QUEUE_FOLDER = re.compile(r"queue=([0-9]{3,})")
_LANE_FOLDER = re.compile(r"lane=[^/]+")
_PART_NAME = re.compile(r"([0-9]{12,})(\.arrow|\.index|\.ids)")


@dataclass(frozen=True, slots=True)
class GroupNote:
    """Which group a log belongs to."""

    group: str
    hash_prefix: str
    hash_count: int
    format: int = FORMAT
    id: str | None = field(default=None, compare=False)
    """Unique to this log; None for a log made before there were ids."""


@dataclass(frozen=True, slots=True)
class LaneNote:
    """Which flow handle a lane belongs to, and its place among those of its queue."""

    queue: int
    member: str
    epoch: int
    order: int
    """Higher than any that the queue had when this lane was begun; lanes begun at the same time may have the same."""
    began_us: int
    """Wall clock, microseconds since the epoch."""
    host: str
    handle: str = ""
    """Tells its flow handle from all others that ever landed into the log; empty if that is not known. A handle begins
    another lane after a flush has failed."""
    format: int = FORMAT

    @property
    def name(self) -> str:
        """`queue=003/lane=...`, where its folder lies."""
        return f"{queue_folder(self.queue)}/lane={self.member}-{self.epoch}.{self.began_us:x}"


def queue_folder(queue: int) -> str:
    return f"queue={queue:03d}"


def queue_of(name: str) -> int | None:
    """The queue whose folder, or a lane of which, has this name; None for any other name."""
    found = _QUEUE_FOLDER.fullmatch(name.partition("/")[0])
    return None if found is None else int(found[1])


def lane_names(root: Path, queue: int) -> list[str]:
    """The lanes of a queue, `queue=003/lane=...`, in no particular order. Raises `OSError`."""
    folder = queue_folder(queue)
    try:
        names = _folders_in(f"{root}/{folder}")
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [f"{folder}/{name}" for name in sorted(names) if _LANE_FOLDER.fullmatch(name)]


def queues_of(root: Path) -> list[int]:
    """The queues of which anything has landed. Raises `OSError`."""
    found = [_QUEUE_FOLDER.fullmatch(name) for name in _folders_in(root)]
    return sorted(int(each[1]) for each in found if each is not None)


def parts_of(folder: Path | str) -> dict[str, list[int]]:
    """First rows of the parts of a lane, by suffix, ascending. Raises `OSError`."""
    return parts_among(os.listdir(folder))


def parts_among(names: Sequence[str]) -> dict[str, list[int]]:
    """As `parts_of`, for a folder that contains these names."""
    parts: dict[str, list[int]] = {DATA_SUFFIX: [], INDEX_SUFFIX: [], IDS_SUFFIX: []}
    for name in names:
        found = _PART_NAME.fullmatch(name)
        if found is not None:
            parts[found[2]].append(int(found[1]))
    for rows in parts.values():
        rows.sort()
    return parts


def foreign_files(root: Path) -> Iterator[Path]:
    """Files in the log that are not parts of it. Folders that cannot be listed are skipped, as whoever reads their
    content gets the error."""
    yield from _others_in(root, GROUP_NOTE, _QUEUE_FOLDER)
    with suppress(OSError):
        for queue in queues_of(root):
            yield from _others_in(root / queue_folder(queue), REMOVED_NOTES, _LANE_FOLDER)
            with suppress(OSError):
                for lane in lane_names(root, queue):
                    yield from _foreign_parts(root / lane)


def read_group_note(root: Path) -> GroupNote:
    """Whose log it is. Raises `UserError` if there is none, `LandingDamaged` or `LandingVersionUnknown`."""
    path = root / GROUP_NOTE
    try:
        found = _read(path)
    except (FileNotFoundError, NotADirectoryError):
        what = f"no {GROUP_NOTE} in it" if root.is_dir() else "no such folder"
        raise UserError(str(root), what, "the folder of a landing log, which `lbg land` makes") from None
    except OSError as error:
        raise UserError(str(path), str(error.strerror), "a file that can be read") from None
    try:
        whose = str(found["group"]), str(found["hash_prefix"]), int(str(found["hash_count"]))
        return GroupNote(*whose, id=str(found["id"]) if found.get("id") is not None else None)
    except (KeyError, ValueError):
        raise _damaged(path) from None


def claim_folder(root: Path, shape: GroupShape) -> GroupNote:
    """Make the folder a group's log, unless it is one already; its note identifies it later.

    Raises `UserError` if it is another group's, holds something else, or cannot be written, and as `read_group_note`.
    """
    note = GroupNote(shape.name, shape.hash_prefix, shape.hash_count, id=uuid.uuid4().hex)
    try:
        # If the folder's own name is not on the disk, nothing in it is durable.
        make_folder(root)
        if not (root / GROUP_NOTE).exists():
            if any(not each.name.startswith(".") for each in root.iterdir()) and not (root / GROUP_NOTE).exists():
                raise UserError(str(root), "not empty, and no landing log", "an empty folder, or that of a log")
            with alone(root):
                # The first to write it determines its id.
                if not (root / GROUP_NOTE).exists():
                    _sync_names_above(root)
                    write_note(root / GROUP_NOTE, note)
        if not os.access(root, os.W_OK | os.X_OK):
            raise UserError(str(root), "may not be written", "a folder that this user may write")
    except OSError as error:
        what = str(error.strerror)
        if isinstance(error, FileExistsError):
            what = "a link that leads to no folder" if root.is_symlink() else "no folder"
        raise UserError(str(root), what, "a folder that can be made and written") from None
    found = read_group_note(root)
    if found != note:
        expected = f"that of group {shape.name}, prefix {shape.hash_prefix}, {shape.hash_count} shards"
        raise UserError(
            str(root), f"the log of {found.group}, prefix {found.hash_prefix}, {found.hash_count} shards", expected
        )
    return found


def _sync_names_above(root: Path) -> None:
    """Make the names of all folders down to this one durable; raises `OSError`.

    Another may have made them just now, or died before it had synced them.
    """
    for each in root.resolve().parents:
        try:
            sync_folder(each)
        except OSError as error:
            # An old folder that is not ours to open, or a file system that takes no new name.
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL):
                raise


def read_lane_note(folder: Path | str) -> LaneNote:
    """Raises `LandingDamaged`, `LandingVersionUnknown`, and `OSError` if there is none."""
    path = f"{folder}/{LANE_NOTE}"
    found = _read(path)
    try:
        numbers = {name: int(str(found[name])) for name in ("queue", "epoch", "order", "began_us")}
        return LaneNote(
            member=str(found["member"]), host=str(found["host"]), handle=str(found.get("handle", "")), **numbers
        )
    except (KeyError, ValueError):
        raise _damaged(path) from None


def find_lane_note(folder: Path | str) -> LaneNote | None:
    """The note of a lane; None if there is no such lane, or no longer one.

    Raises as `read_lane_note`, and `LandingDamaged` if parts of a lane lie there without it.
    """
    try:
        return read_lane_note(folder)
    except (FileNotFoundError, NotADirectoryError):
        pass
    # The folder of a lane comes with its note and goes in one step, so this is not a state in between.
    try:
        has_parts = any(parts_of(folder).values())
    except (FileNotFoundError, NotADirectoryError):
        return None
    if has_parts:
        raise LandingDamaged(f"{folder}/{LANE_NOTE}", "it is missing, and parts of a lane are there", DAMAGE_REMEDY)
    return None


def write_note(path: Path, note: GroupNote | LaneNote) -> None:
    """Write the note, as `write_whole` does; raises `OSError`."""
    write_whole(path, seal(asdict(note)))


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Admit one process at a time. Raises `OSError`."""
    file = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def _folders_in(path: Path | str) -> list[str]:
    """The names of the folders; a file is not part of a log, whatever its name."""
    with os.scandir(path) as entries:
        return [each.name for each in entries if each.is_dir()]


def _others_in(folder: Path, note: str, ours: re.Pattern[str]) -> list[Path]:
    """Entries that are neither the note of the folder nor a folder of ours."""
    try:
        return [
            path
            for path in sorted(folder.iterdir())
            if path.name != note and not (path.is_dir() and ours.fullmatch(path.name))
        ]
    except OSError:
        return []


def _foreign_parts(lane: Path) -> list[Path]:
    try:
        names = sorted(os.listdir(lane))
    except OSError:
        return []
    foreign = [name for name in names if name != LANE_NOTE and not _PART_NAME.fullmatch(name)]
    return [lane] if foreign == names else [lane / name for name in foreign]


def _read(path: Path | str) -> dict[str, object]:
    content = read_whole(path)
    try:
        found = unseal(content)
    except ValueError:
        raise _damaged(path) from None
    if not isinstance(found.get("format"), int):
        raise _damaged(path)
    check_format(path, found["format"])
    return found


def _damaged(path: Path | str) -> LandingDamaged:
    return LandingDamaged(str(path), "not as it was written", DAMAGE_REMEDY)
