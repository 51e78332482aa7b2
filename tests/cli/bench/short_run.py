"""A short run of a bench in this process: only what it measures has processes of its own.

That `lbg bench` is a process as well, which prints its report and nothing else, is shown in `test_everything`.
"""

import json
from typing import Any

from typer.testing import CliRunner

from lbg_runtime.cli.bench.commands import bench


def short_run(name: str, *options: str) -> dict[str, Any]:
    """What the bench reports; nothing may be wrong."""
    ended = CliRunner().invoke(bench, [name, "--json", *options], catch_exceptions=False)
    assert ended.exit_code == 0, ended.stderr + ended.stdout
    told: dict[str, Any] = json.loads(ended.stdout)
    assert told["right"] is True
    return told
