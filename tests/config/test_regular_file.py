"""A file that settings name is read to its end, or to a limit, and nothing else is waited for."""

import os
from pathlib import Path

import pytest

from lbg_runtime.config.regular_file import read_regular_file
from tests.open_files import open_below


def test_as_much_as_is_allowed_is_read_and_no_more(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    assert read_regular_file(file) == read_regular_file(file, 5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_regular_file(file, 4)
    assert not open_below(tmp_path)


def test_neither_a_pipe_nor_a_folder_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", tmp_path):
        with pytest.raises(OSError, match="not a regular file"):
            read_regular_file(place)
