"""The plugin as other people's test runs meet it: in a process of its own, in both modes of pytest-asyncio."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

pytestmark = pytest.mark.real_time

MODULE = """
import asyncio
import pytest
from lbg_runtime import Handlers
from lbg_runtime.testing import VirtualTimeLoop

handlers = Handlers()

@handlers.handler("orders/>")
async def on_order(message):
    await asyncio.sleep(60)

handlers_settings = {"failure": {"timeout": "2h"}}

@MARK
async def test_with_a_group(lbg_running):
    assert isinstance(asyncio.get_running_loop(), VirtualTimeLoop)
    async with lbg_running(handlers, members=2, settings=handlers_settings) as group:
        await group.publish("orders/new", "1", "2", key="k")
        await group.settled(within_s=10_000)
        group.assert_handled({"k": ["1", "2"]})

@pytest.fixture
def my_group(lbg_running):
    return lbg_running(handlers)

@MARK
async def test_through_a_fixture_of_ones_own(my_group):
    async with my_group as group:
        assert group.members

@MARK
@pytest.mark.parametrize("number", [1, 2])
async def test_with_parameters(lbg_running, number):
    async with lbg_running(handlers, members=number) as group:
        assert len(group.members) == number

@MARK
async def test_without_a_group():
    assert not isinstance(asyncio.get_running_loop(), VirtualTimeLoop)

def test_with_a_broker(lbg_broker):
    lbg_broker.create_queue("q", "q/>")
    assert lbg_broker.queue_status("q").depth == 0

def test_that_is_none_of_it():
    pass
"""


def run(folder: Path, module: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(module)
    # Without a plugin that has no part in this, and takes a while to import.
    others = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
    command = [sys.executable, "-m", "pytest", *others, *options, str(folder)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@pytest.mark.parametrize(("mode", "scope"), [("auto", "function"), ("strict", "module")])
def test_a_group_has_virtual_time_and_nobody_else_notices(tmp_path: Path, mode: str, scope: str) -> None:
    mark = "pytest.mark.asyncio" if mode == "strict" else "(lambda function: function)"
    options = ("-o", f"asyncio_mode={mode}", "-o", f"asyncio_default_test_loop_scope={scope}", "-W", "error")
    done = run(tmp_path, MODULE.replace("MARK", mark), "-o", "asyncio_default_fixture_loop_scope=function", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "7 passed" in done.stdout


def test_loops_that_a_user_has_chosen_stay_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import asyncio\n"
        "class Mine(asyncio.SelectorEventLoop): pass\n"
        "def pytest_asyncio_loop_factories(config, item): return {'mine': Mine}\n"
    )
    module = MODULE.replace("MARK", "(lambda function: function)").replace(
        "assert not isinstance(asyncio.get_running_loop(), VirtualTimeLoop)",
        "assert type(asyncio.get_running_loop()).__name__ == 'Mine'",
    )
    done = run(tmp_path, module, "-o", "asyncio_mode=auto")
    assert done.returncode == 0, done.stdout + done.stderr


BY_ANYIO = """
import pytest
from lbg_runtime import Handlers

handlers = Handlers()

@handlers.handler("orders/>")
async def on_order(message):
    pass

@pytest.fixture
def anyio_backend():
    # Otherwise there is a test for trio as well, with some versions also where that is not installed.
    return "asyncio"

@pytest.mark.anyio
async def test_it(lbg_running):
    async with lbg_running(handlers):
        pass

def test_with_a_broker(lbg_broker):
    assert lbg_broker.port
"""


@pytest.mark.parametrize("options", [(), ("-p", "no:asyncio")])
def test_a_test_that_anyio_runs_is_told_so_in_one_line_and_all_else_works_also_without_pytest_asyncio(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    """It has the fixture, so that it lacks it is no help."""
    done = run(tmp_path, BY_ANYIO, *options)
    errors = [line for line in done.stdout.splitlines() if line.startswith("E ")]
    assert (done.returncode, len(errors)) == (1, 1), done.stdout
    assert "1 failed, 1 passed" in done.stdout
    assert "run by pytest-asyncio, not by anyio: @pytest.mark.asyncio" in errors[0]
    assert "_check_surroundings" not in done.stdout


LOOK = """
import sys
HEAVY = ("solace", "pyarrow", "numpy", "pydantic", "lbg_runtime.runtime", "lbg_runtime.testing.group")

def test_nothing_of_weight_is_loaded():
    assert "lbg_runtime.testing.pytest_plugin" in sys.modules
    assert [name for name in HEAVY if name in sys.modules] == []
"""


def test_a_run_that_does_not_use_it_loads_nothing_of_weight(tmp_path: Path) -> None:
    done = run(tmp_path, LOOK)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_import_brings_nothing_but_itself() -> None:
    """Every test run on the machine pays for it."""
    code = (
        "import pytest, asyncio, sys\n"
        "before = set(sys.modules)\n"
        "import lbg_runtime.testing.pytest_plugin\n"
        "print(*sorted(set(sys.modules) - before))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout.split() == ["lbg_runtime", "lbg_runtime.testing", "lbg_runtime.testing.pytest_plugin"]


FAILING = """
import pytest
from lbg_runtime import Handlers

handlers = Handlers()

@handlers.handler("orders/>")
async def on_order(message):
    raise ValueError("no such order")

def swallow(handle):
    async def nothing(message):
        pass
    return nothing

@pytest.mark.asyncio
async def test_stuck(lbg_running):
    async with lbg_running(handlers) as group:
        await group.publish("orders/new", "1", key="k")
        await group.settled()

@pytest.mark.asyncio
async def test_lost(lbg_running):
    async with lbg_running(handlers, around=swallow) as group:
        await group.publish("orders/new", "1", key="k")
        await group.settled()
"""


def test_a_failed_test_shows_the_users_lines_and_not_the_kits(tmp_path: Path) -> None:
    done = run(tmp_path, FAILING)
    shown = done.stdout
    assert done.returncode == 1
    assert ">           await group.settled()" in shown
    assert ">       async with lbg_running(handlers, around=swallow) as group:" in shown
    assert "not settled within 120 s:" in shown
    assert '    raise ValueError("no such order")' in shown
    assert "publisher/k: 1 confirmed, never handled to an end" in shown
    assert "lbg_runtime/testing/group" not in shown
    assert "handling_failed" not in shown, "the log would hide the rest"


WITHOUT_PYARROW = """
import sys
for name in ("pyarrow", "numpy"):
    sys.modules[name] = None

import pytest
from lbg_runtime import Handlers
from lbg_runtime.model.errors import UserError
from lbg_runtime.testing import BrokerOnPort, LawsBroken, NotReached

handlers = Handlers()

@handlers.handler("orders/>")
async def on_order(message):
    pass

def test_with_a_broker(lbg_broker):
    assert lbg_broker.port

@pytest.mark.asyncio
async def test_with_a_group(lbg_running):
    with pytest.raises(UserError, match=r"pip install 'lbg-runtime\\[testing\\]'"):
        async with lbg_running(handlers):
            pass
"""


def test_without_pyarrow_a_broker_works_and_a_group_says_what_to_install(tmp_path: Path) -> None:
    done = run(tmp_path, WITHOUT_PYARROW)
    assert done.returncode == 0, done.stdout + done.stderr
