"""`lbg run --reload`: which files matter, and a real member that is started anew."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from watchfiles import Change

from lbg_runtime.cli.reload import UserFiles, member_command
from tests.patience import PATIENCE_S
from tests.processes import running


def test_python_files_and_the_settings_matter_and_nothing_else(tmp_path):
    for folder in ("shop", ".venv", "env", "node_modules"):
        (tmp_path / folder).mkdir()
    (tmp_path / "env" / "pyvenv.cfg").touch()
    for file in ("app.py", "config.yaml", "other.yaml"):
        (tmp_path / file).touch()
    files = UserFiles(tmp_path, tmp_path / "config.yaml")
    assert (files.folders, files.trees) == ([tmp_path], [tmp_path / "shop"])
    matters = [path for path in ("shop/orders.py", "config.yaml") if files(Change.modified, str(tmp_path / path))]
    assert matters == ["shop/orders.py", "config.yaml"]
    for path in ("shop/notes.txt", "shop/__pycache__/orders.py", "other.yaml", "shop/.git/hook.py"):
        assert not files(Change.modified, str(tmp_path / path))


def test_a_folder_that_is_made_later_is_to_be_watched_unless_it_becomes_an_environment(tmp_path):
    files = UserFiles(tmp_path, tmp_path / "config.yaml")
    for folder in ("shop/deep", ".venv", "env", "node_modules"):
        (tmp_path / folder).mkdir(parents=True)
    made = ("shop", "shop/deep", ".venv", "env", "node_modules")
    assert [one for one in made if files(Change.added, str(tmp_path / one))] == ["shop", "env"]
    assert not files(Change.modified, str(tmp_path / "shop"))
    (tmp_path / "env" / "pyvenv.cfg").touch()
    changed = ("shop/deep/orders.py", "env/lib/site.py", "app.py")
    assert [one for one in changed if files(Change.added, str(tmp_path / one))] == ["shop/deep/orders.py", "app.py"]


def test_the_member_gets_the_same_command_and_leaves_with_its_parent():
    assert member_command(["run", "--reload", "--member-id", "a"])[1:] == [
        "-m", "lbg_runtime.cli", "run", "--member-id", "a", "--exit-with-parent",
    ]  # fmt: skip


HANDLERS = """\
from lbg_runtime import Handlers, Message
handlers = Handlers()
@handlers.handler("{topic}")
async def handle(message: Message) -> None: ...
@handlers.lifespan
async def life():
    print("{word}", flush=True)
    yield
"""


@pytest.mark.real_time
@pytest.mark.end_to_end
def test_a_member_is_started_anew_for_a_change_also_after_a_mistake_and_leaves_clean(tmp_path):
    def write(word, topic="orders/>"):
        # As editors do it.
        (tmp_path / "new").write_text(HANDLERS.format(word=word, topic=topic))
        (tmp_path / "new").replace(tmp_path / "shop.py")

    write("first")
    settings = {
        "connection": {"transport": "embedded", "host": "tcp://127.0.0.1:0"},
        "group": {"name": "o", "hash_prefix": "h", "hash_count": 4, "queue_count": 1, "provision": "create_missing"},
        "membership": {"settle": "100ms"},
        "handlers": ["shop"],
    }
    (tmp_path / "config.yaml").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "lbg_runtime.cli", "run", "--reload"]
    root = Path(__file__).parents[2]
    with running(
        [*command, "--config", "config.yaml"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(root)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        said = []

        def until(*texts):
            for line in process.stdout:
                said.append(line)
                if all(text in line for text in texts):
                    return
            raise AssertionError("".join(said))

        until("first")
        until("member_started")
        write("second", topic="orders/>/no")
        until("files_changed")
        until("lbg: shop:handle")
        until('"member_ended"')
        write("third")
        until("third")
        until("member_started")
        # A folder that was not there at the start, with a file in it at once, and one that is changed later.
        (tmp_path / "parts").mkdir()
        for name in ("prices.py", "taxes.py"):
            (tmp_path / "parts" / name).touch()
            until("files_changed", name)
            until("third")
            until("member_started")
        process.send_signal(signal.SIGTERM)
        until("member_left")
        assert process.wait(PATIENCE_S) == 0


NOT_STARTED = """\
import asyncio, errno, os, sys
from pathlib import Path
from lbg_runtime.cli import reload
from lbg_runtime.cli.log import configure_log

configure_log(as_json=True)
start, refusals = asyncio.create_subprocess_exec, [OSError(errno.EMFILE, "Too many open files")]

async def start_or_not(*command, **options):
    if refusals:
        raise refusals.pop()
    return await start(*command, **options)

asyncio.create_subprocess_exec = start_or_not
files = reload.UserFiles(Path.cwd(), Path("config.yaml"))
# As it is while it is imported: nothing hears the signal.
member = "import time; print('there', flush=True); time.sleep(600)"
sys.exit(asyncio.run(reload.Reloader([sys.executable, "-c", member], files).run()))
"""


@pytest.mark.real_time
def test_a_member_that_cannot_be_started_waits_for_a_change_and_one_that_is_not_there_yet_leaves_clean(tmp_path):
    with running(
        [sys.executable, "-c", NOT_STARTED], cwd=tmp_path, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip

        def until(text):
            assert any(text in line for line in process.stdout), text

        whose = f'"process": {process.pid}'
        until(f'"member_not_started", {whose}, "reason": "Too many open files", "until": "a file changes"}}')
        (tmp_path / "app.py").touch()
        until("there")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


STOPPED = """\
import asyncio, os, signal, sys
from pathlib import Path
from lbg_runtime.cli import reload
from lbg_runtime.cli.log import configure_log

configure_log(as_json=True)
reload.PATIENCE_S = reload.HURRY_S = 0.1
# As it is asked to leave, maybe, before it is stopped.
deaf = "import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
member = f"{deaf}; print('there', flush=True); os.kill(os.getpid(), signal.SIGSTOP)"
files = reload.UserFiles(Path.cwd(), Path("config.yaml"))
code = asyncio.run(reload.Reloader([sys.executable, "-c", member], files).run(ends_process=True))
# Too late to mean anything.
os.kill(os.getpid(), signal.SIGTERM)
sys.exit(code)
"""


@pytest.mark.real_time
def test_a_member_that_is_stopped_is_waited_for_within_a_bound_and_then_killed(tmp_path):
    with running(
        [sys.executable, "-c", STOPPED], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip

        def until(*texts):
            for text in texts:
                assert any(text in line for line in process.stdout), text

        until("there")
        (tmp_path / "app.py").touch()
        until("files_changed", "member_killed", "there")
        process.send_signal(signal.SIGTERM)
        until("stop_requested")
        # A second time, so that it is not given the time to drain.
        process.send_signal(signal.SIGTERM)
        until("stop_requested", "member_killed")
        assert process.wait(PATIENCE_S) == 128 + signal.SIGKILL


NOT_WATCHED = """\
import asyncio, errno, sys
from pathlib import Path
from lbg_runtime.cli import reload
from lbg_runtime.cli.log import configure_log

configure_log(as_json=True)

async def awatch(*places, ignore_permission_denied, **options):
    print("others' folders passed over:", ignore_permission_denied, flush=True)
    raise OSError(errno.ENOSPC, "OS file watch limit reached")
    yield

reload.awatch = awatch
member = "import time; print('there', flush=True); time.sleep(600)"
files = reload.UserFiles(Path.cwd(), Path("config.yaml"))
sys.exit(asyncio.run(reload.Reloader([sys.executable, "-c", member], files).run()))
"""


@pytest.mark.real_time
def test_a_watch_that_ends_is_told_and_a_folder_of_somebody_else_ends_none(tmp_path):
    with running(
        [sys.executable, "-c", NOT_WATCHED], cwd=tmp_path, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        awaited = {
            "others' folders passed over: True",
            f'"watch_failed", "process": {process.pid}, "reason": "[Errno 28] OS file watch limit reached"}}',
            "there",
        }
        # In any order: the member is begun in the turn of the loop before the one that tells of the watch.
        for line in process.stdout:
            awaited -= {text for text in awaited if text in line}
            if not awaited:
                break
        assert not awaited
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
