import errno
from pathlib import Path

import pytest

from lbg_runtime.model.errors import SparkUnavailable
from lbg_runtime.pipeline.spark.programs import made_program


def test_a_program_is_made_once(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    program = made_program("python", "#!/bin/sh\n", environment)
    made = program.stat()
    assert made_program("python", "#!/bin/sh\n", environment) == program
    assert (program.stat().st_ino, list(program.parent.iterdir())) == (made.st_ino, [program])


def test_a_disk_without_room_is_said_and_is_left_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(SparkUnavailable, match="No space left on device"):
        made_program("python", "#!/bin/sh\n", {"XDG_CACHE_HOME": str(tmp_path)})
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
