"""What an earlier start has kept of a group's stored settings, for a start at which the broker does not answer."""

import errno
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

import orjson
import structlog

from lbg_runtime.admin.spec import StoredGroup, read_marker
from lbg_runtime.config.regular_file import read_regular_file

_LARGEST_BYTES = 64 * 1024
"""Many times what the name of a group, that of a VPN and a marker can take."""

_log = structlog.get_logger(__name__)


class CacheUnfit(Exception):
    """The text says what is wrong with the file."""


class GroupCache:
    """The file of `group.cache`, which is that of one group in one VPN."""

    def __init__(self, path: Path, group: str, vpn: str) -> None:
        self.path = path
        self._group = group
        self._vpn = vpn

    def read(self) -> StoredGroup:
        """What was kept of this very group; raises `CacheUnfit` for anything else."""
        try:
            content = read_regular_file(self.path, _LARGEST_BYTES)
        except OSError as error:
            raise CacheUnfit(f"cannot be read ({error.strerror})") from None
        try:
            kept = orjson.loads(content)
        except orjson.JSONDecodeError:
            kept = None
        match kept:
            case {"group": str(group), "vpn": str(vpn), "marker": str(text)}:
                if (group, vpn) != (self._group, self._vpn):
                    raise CacheUnfit(f"is of group {group} in VPN {vpn}, not of {self._group} in {self._vpn}")
                if (stored := read_marker(group, text)) is not None:
                    return stored
            case {"V": _}:
                raise CacheUnfit("has no name of a group in it, as an earlier version of lbg wrote it")
        raise CacheUnfit("holds nothing that this version of lbg can read")

    def write(self, text: str) -> None:
        """Keep these settings, whole or not at all; if they cannot be written, the log says so, and the start goes
        on."""
        try:
            self._replace(orjson.dumps({"group": self._group, "vpn": self._vpn, "marker": text}))
        except OSError as error:
            _log.warning("group_cache_not_written", path=str(self.path), reason=error.strerror)

    def _replace(self, content: bytes) -> None:
        if _is_no_file(self.path):
            raise OSError(errno.EINVAL, "not a regular file")
        # If it is a link, the file behind it is the one that others have too. `Path.resolve` raises for a link to
        # itself.
        path = Path(os.path.realpath(self.path))
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                # Otherwise a power failure may leave an empty file in the place of the one before.
                os.fsync(file.fileno())
            Path(name).replace(path)
        except OSError:
            with suppress(OSError):
                Path(name).unlink()
            raise


def _is_no_file(path: Path) -> bool:
    """Whether something else is there, such as a device; putting a file in its place would take it from others."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False
