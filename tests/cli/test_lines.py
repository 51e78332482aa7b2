"""Standard input becomes lines, whatever it is connected to."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from lbg_runtime.cli import lines
from lbg_runtime.cli.lines import read_lines
from lbg_runtime.model.errors import UserError

pytestmark = pytest.mark.real_time


async def _all_lines(descriptor: int) -> list[bytes]:
    return [line async for line in read_lines(descriptor)]


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (b"", []),
        (b"a", [b"a"]),
        (b"a\n", [b"a"]),
        (b"a\n\nb", [b"a", b"", b"b"]),
        (b"\xff\r\n\x00\n", [b"\xff\r", b"\x00"]),
    ],
)
async def test_lines_of_a_pipe(pipe: tuple[int, int], written: bytes, expected: list[bytes]) -> None:
    os.write(pipe[1], written)
    os.close(pipe[1])
    assert await _all_lines(pipe[0]) == expected


async def test_lines_of_a_file_longer_than_one_read(tmp_path: Path) -> None:
    expected = [b"%d" % number * 100 for number in range(5000)]
    path = tmp_path / "lines"
    path.write_bytes(b"\n".join(expected))
    with path.open("rb") as file:
        assert await _all_lines(file.fileno()) == expected


async def test_a_line_arrives_as_soon_as_it_is_whole(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    async with aclosing(read_lines(reader)) as incoming:
        os.write(writer, b"first\nsec")
        assert await anext(incoming) == b"first"
        waiting = asyncio.ensure_future(anext(incoming))
        os.write(writer, b"ond\n")
        assert await waiting == b"second"
    os.close(writer)


async def test_cancelled_while_it_waits_it_leaves_nothing_behind(pipe: tuple[int, int]) -> None:
    waiting = asyncio.create_task(_all_lines(pipe[0]))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not asyncio.get_running_loop().remove_reader(pipe[0])
    os.close(pipe[1])


async def test_a_descriptor_that_cannot_be_read_is_told_in_one_line(tmp_path: Path) -> None:
    words = r"^standard input: Bad file descriptor; expected a file, a pipe or"
    with (tmp_path / "written").open("wb") as file, pytest.raises(UserError, match=words):
        await _all_lines(file.fileno())


@pytest.mark.parametrize("end", [b"", b"\n", b"\nnext\n"])
async def test_a_line_too_long_is_refused_with_an_end_or_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: bytes
) -> None:
    """One whose end came in the same piece was sent, and what follows it after its refusal."""
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 1_000)
    path = tmp_path / "line"
    path.write_bytes(b"x" * 1_001 + end)
    with path.open("rb") as file, pytest.raises(UserError):
        await _all_lines(file.fileno())
