import errno
import os
import tempfile
from pathlib import Path

import pytest

from lbg_runtime.cli.live.run_folder import run_folder
from lbg_runtime.model.errors import UserError


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_a_folder_that_is_not_wanted_is_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with run_folder("lbg-test-") as folder:
        (folder.path / "log").touch()
        folder.is_wanted = False
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "")


def test_a_folder_of_which_nobody_says_that_all_was_well_stays_and_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(KeyboardInterrupt), run_folder("lbg-test-") as folder:
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == [folder.path]
    assert capsys.readouterr().err == f"journals and logs: {folder.path}\n"


def test_a_folder_that_cannot_be_removed_spoils_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with run_folder("lbg-test-") as folder:
        folder.is_wanted = False
        monkeypatch.setattr(os, "rmdir", refuse)
    assert list(tmp_path.iterdir()) == [folder.path]


def test_a_folder_that_cannot_be_made_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    expected = "^temporary folder: No such file or directory; expected room for journals, such as in TMPDIR$"
    with pytest.raises(UserError, match=expected), run_folder("lbg-test-"):
        pass
