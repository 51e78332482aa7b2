"""A disk that remembers what a power cut would leave of it."""

import os
import shutil
import stat
from pathlib import Path


class Disk:
    """Remembers what a power cut leaves: of a folder the names, and of a file the bytes, that it had when it was last
    synced."""

    def __init__(self) -> None:
        self._names: dict[int, set[str]] = {}
        self._sizes: dict[int, int] = {}

    def sync(self, file: int) -> None:
        found = os.fstat(file)
        if stat.S_ISDIR(found.st_mode):
            self._names[found.st_ino] = set(os.listdir(file))
        else:
            self._sizes[found.st_ino] = found.st_size

    def lost(self, top: Path) -> list[str]:
        """What lies below and would be gone, or cut."""
        lost = []
        for folder, folders, files in os.walk(top):
            kept = self._names.get(os.stat(folder).st_ino, set())
            lost += [f"{folder}/{name}" for name in (*folders, *files) if name not in kept]
            for path in (Path(folder, name) for name in files):
                if self._sizes.get(path.stat().st_ino, 0) < path.stat().st_size:
                    lost.append(f"{path} to its end")
        return lost

    def cut_power(self, top: Path) -> None:
        """Take away what lies below and would be gone, or cut; names that were removed do not come back."""
        for folder, folders, files in os.walk(top):
            kept = self._names.get(os.stat(folder).st_ino, set())
            for name in [each for each in folders if each not in kept]:
                folders.remove(name)
                shutil.rmtree(f"{folder}/{name}")
            for path in (Path(folder, name) for name in files):
                if path.name in kept:
                    os.truncate(path, min(self._sizes.get(path.stat().st_ino, 0), path.stat().st_size))
                else:
                    path.unlink()
