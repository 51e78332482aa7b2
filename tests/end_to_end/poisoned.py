"""Handlers, in a module of their own, that one key cannot get past until they are mended."""

from pathlib import Path

HANDLERS = "poisoned_handlers"
"""The module, as settings name it."""

_TEXT = """
import asyncio
from pathlib import Path
from lbg_runtime import Handlers

handlers = Handlers()

@handlers.handler("orders/>")
async def on_order(message):
    if message.key == "{}" and not Path("mended").exists():
        raise ValueError("poison")
    await asyncio.sleep(0.003)
"""


def write_handlers(folder: Path, key: str) -> None:
    """A message of this key fails until there is a file `mended` in the folder in which the member runs."""
    (folder / f"{HANDLERS}.py").write_text(_TEXT.format(key))
