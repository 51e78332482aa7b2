"""A PostgreSQL server of its own for a test run: a directory, a Unix socket, no port, ended with the run."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pwd import getpwnam

from tests.patience import PATIENCE_S

SUPERUSER = "lbg"


def program(name: str) -> str | None:
    """A program of the server: on the path, or where Debian keeps those of each version."""
    found = shutil.which(name)
    # On Debian's path, most of them are a wrapper of some other name.
    if found is not None and Path(found).resolve().name == name:
        return str(Path(found).resolve())
    newest = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: float(path.parts[-3]))
    return str(newest[-1]) if newest else None


@dataclass(frozen=True, slots=True)
class Server:
    """One that runs."""

    folder: Path
    """Its own; holds the data, the log and the socket."""

    @property
    def conninfo(self) -> str:
        """What to connect with."""
        return f"host={self.folder} user={SUPERUSER} dbname=postgres"

    def start(self) -> None:
        """Have it run, also again; returns when it takes connections."""
        options = f"-c listen_addresses='' -c unix_socket_directories='{self.folder}' -c fsync=off"
        log = str(self.folder / "log")
        _run(self.folder, "pg_ctl", "-D", str(self.folder / "data"), "-w", "-l", log, "-o", options, "start")

    def stop(self) -> None:
        """As if the host had lost its power; a second time does nothing."""
        if (self.folder / "data/postmaster.pid").exists():
            _run(self.folder, "pg_ctl", "-D", str(self.folder / "data"), "-w", "-m", "immediate", "stop")

    def promote(self) -> None:
        """Have a standby take over."""
        _run(self.folder, "pg_ctl", "-D", str(self.folder / "data"), "-w", "promote")


@contextmanager
def running_server() -> Iterator[Server]:
    """With a server that nobody else knows of."""
    with _folder() as folder:
        made = ["-D", str(folder / "data"), "-U", SUPERUSER, "--auth=trust", "--no-sync", "-E", "UTF8", "--no-locale"]
        _run(folder, "initdb", *made)
        with _started(folder) as server:
            yield server


@contextmanager
def running_standby(primary: Server) -> Iterator[Server]:
    """With a standby that has what the primary has now, and is sent no more."""
    with _folder() as folder:
        copied = ["-D", str(folder / "data"), "-h", str(primary.folder), "-U", SUPERUSER, "-c", "fast", "--no-sync"]
        _run(folder, "pg_basebackup", *copied)
        (folder / "data/standby.signal").touch()
        with _started(folder) as server:
            yield server


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="lbg-postgres-"))
    try:
        user = _user()
        if user is not None:
            shutil.chown(folder, user)
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def _started(folder: Path) -> Iterator[Server]:
    server = Server(folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def _user() -> str | None:
    """Whom to run it as, if not as who we are: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return getpwnam(name).pw_name
        except KeyError:
            continue
    raise RuntimeError("no unprivileged user to run PostgreSQL as")


def _run(folder: Path, name: str, *arguments: str) -> None:
    path, user = program(name), _user()
    if path is None:
        raise RuntimeError(f"no {name}")
    command: Sequence[str] = (path, *arguments)
    # Not through a pipe: the server keeps what it inherits, and a pipe would stay open as long as it runs.
    with (folder / f"{name}.out").open("w+") as output:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            user=user,
            group=None if user is None else getpwnam(user).pw_gid,
            extra_groups=None if user is None else [],
            timeout=PATIENCE_S,
            check=False,
        )
        if done.returncode:
            output.seek(0)
            raise RuntimeError(f"{name} failed: {output.read()}")
