"""Writes the pages into a folder: `python -m lbg_runtime.cli.reference FOLDER`."""

import sys
from pathlib import Path

from lbg_runtime.cli.reference.pages import write_pages

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m lbg_runtime.cli.reference FOLDER")
    for path in write_pages(Path(sys.argv[1])):
        print(path)
