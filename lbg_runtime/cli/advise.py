"""`lbg advise`: what the journals of a run say about the hash count and queue count of its group."""

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from lbg_runtime.cli.options import Json, path_argument, path_option, print_json
from lbg_runtime.model.errors import UserError
from lbg_runtime.model.hashing import HashFunction

LARGEST = 10_000
_RANGE = re.compile(r"([0-9]{1,5})\.\.([0-9]{1,5})")
_COUNTS_FORM = f"a range such as 4..32, or counts such as 4,8,16, from 1 to {LARGEST}"


def advise(
    directory: Annotated[Path, path_argument(help="Directory with the journals of one run.")],
    queues: Annotated[str, typer.Option(help="Queue counts to try, such as 4..32 or 4,8,16.")] = "2..32",
    hash_counts: Annotated[
        str | None, typer.Option(help="Hash counts to try. Default: the group's own and likely others.")
    ] = None,
    hash_function: Annotated[
        HashFunction | None, typer.Option(help="The group's hash function. Default: found from keys and shards.")
    ] = None,
    html: Annotated[
        Path | None,
        path_option(help="File for a report with plots. It is a single file and needs nothing else."),
    ] = None,
    json: Json = False,
) -> None:
    """Advise on hash count and queue count, by the journals of a run: how evenly they spread the load.

    The keys that were handled are hashed again for every pair of counts. Hot keys and idle members are named, too.
    """
    queue_counts = _counts("--queues", queues)
    counts = [] if hash_counts is None else _counts("--hash-counts", hash_counts)
    from lbg_runtime.journal.reader import read_run
    from lbg_runtime.pipeline.advise.analysis import analyse
    from lbg_runtime.pipeline.advise.report import as_object, as_page, as_text

    advice = analyse(read_run(directory), str(directory), queue_counts, counts, hash_function)
    if html is not None:
        try:
            _write(html, as_page(advice).encode())
        except OSError as error:
            raise UserError("--html", f"{html}: {error.strerror}", "a file that can be written") from None
    if json:
        print_json(as_object(advice))
    else:
        print(as_text(advice))


def _write(page: Path, content: bytes) -> None:
    """Write it whole or not at all; raises `OSError`."""
    from lbg_runtime.pipeline.files import write_whole

    if page.exists() and not page.is_file():
        # Such as a pipe, in whose place there is to be no file.
        page.write_bytes(content)
    else:
        # The file behind a link, which stays.
        write_whole(Path(os.path.realpath(page)), content)


def _counts(option: str, text: str) -> list[int]:
    found = _RANGE.fullmatch(text)
    if found is not None:
        counts = list(range(int(found[1]), int(found[2]) + 1))
    else:
        parts = text.split(",")
        if not all(part.isascii() and part.isdecimal() and len(part) <= 5 for part in parts):
            raise UserError(option, repr(text), _COUNTS_FORM)
        counts = sorted({int(part) for part in parts})
    if not counts or counts[0] < 1 or counts[-1] > LARGEST:
        raise UserError(option, repr(text), _COUNTS_FORM)
    return counts
