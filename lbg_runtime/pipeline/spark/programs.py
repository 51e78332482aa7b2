"""Small wrappers around programs that Spark starts; created in the user's cache if they are missing.

Each is written under another name and then renamed, so that two processes at once do no harm.
"""

import hashlib
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from lbg_runtime.model.errors import SparkUnavailable


def made_program(name: str, text: str, environ: Mapping[str, str]) -> Path:
    """The program `bin/<name>` with this text, in its own folder; raises `SparkUnavailable` if it cannot be kept."""
    home = _cache_folder(environ) / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    program = home / "bin" / name
    try:
        if program.is_file() and program.read_text() == text and os.access(program, os.X_OK):
            return program
        program.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, draft = tempfile.mkstemp(dir=program.parent)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
            Path(draft).chmod(0o700)
            Path(draft).replace(program)
        except OSError:
            with suppress(OSError):
                Path(draft).unlink()
            raise
    except OSError as error:
        remedy = "a cache folder that can be written to; set XDG_CACHE_HOME"
        raise SparkUnavailable(f"{program} cannot be written: {error.strerror}", remedy) from None
    return program


def _cache_folder(environ: Mapping[str, str]) -> Path:
    """A folder that belongs to this user alone: what lies there is executed."""
    base = environ.get("XDG_CACHE_HOME") or (Path(environ["HOME"]) / ".cache" if environ.get("HOME") else None)
    folder = Path(base) / "lbg-runtime" if base else Path(tempfile.gettempdir()) / f"lbg-runtime-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = folder.stat().st_uid
    except OSError as error:
        remedy = "a cache folder that can be written to; set XDG_CACHE_HOME"
        raise SparkUnavailable(f"{folder} cannot be made: {error.strerror}", remedy) from None
    if owner != os.getuid():
        raise SparkUnavailable(f"{folder} is another user's", "a cache folder of your own; set XDG_CACHE_HOME")
    return folder
