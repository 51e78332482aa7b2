"""A PostgreSQL server of its own for a test run: a directory, a Unix socket, no port, ended with the run."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from pwd import getpwnam

from tests.patience import PATIENCE_S

SUPERUSER = "lbg"


def program(name: str) -> str | None:
    """A program of the server: on the path, or where Debian keeps those of each version."""
    found = shutil.which(name)
    if found is not None:
        return str(Path(found).resolve())
    newest = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: float(path.parts[-3]))
    return str(newest[-1]) if newest else None


@contextmanager
def running_server() -> Iterator[str]:
    """With a server that nobody else knows of; what to connect with."""
    folder = Path(tempfile.mkdtemp(prefix="lbg-postgres-"))
    try:
        # PostgreSQL refuses to run as root.
        user = _unprivileged_user() if os.geteuid() == 0 else None
        if user is not None:
            shutil.chown(folder, user)
        data = str(folder / "data")
        _run(
            user,
            folder,
            "initdb",
            "-D",
            data,
            "-U",
            SUPERUSER,
            "--auth=trust",
            "--no-sync",
            "-E",
            "UTF8",
            "--no-locale",
        )
        options = f"-c listen_addresses='' -c unix_socket_directories='{folder}' -c fsync=off"
        _run(user, folder, "pg_ctl", "-D", data, "-w", "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield f"host={folder} user={SUPERUSER} dbname=postgres"
        finally:
            _run(user, folder, "pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)


def _unprivileged_user() -> str:
    for name in ("postgres", "nobody"):
        try:
            return getpwnam(name).pw_name
        except KeyError:
            continue
    raise RuntimeError("no unprivileged user to run PostgreSQL as")


def _run(user: str | None, folder: Path, name: str, *arguments: str) -> None:
    path = program(name)
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
