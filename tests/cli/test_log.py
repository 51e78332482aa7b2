"""What a command's log shows, and what it must not."""

import json
import subprocess
import sys

import pytest

from tests.patience import PATIENCE_S
from tests.warm import Warm

pytestmark = pytest.mark.real_time

SCRIPT = """
import sys, structlog
from lbg_runtime.cli.log import configure_log
configure_log(as_json=sys.argv[1] == "json")

def handle(payload):
    raise ValueError("the order is wrong" + sys.argv[2] * 5_000_000)

try:
    handle("card " + "4711")
except ValueError as error:
    key = "ada" + sys.argv[2] * 5_000_000
    structlog.get_logger().warning("handling_failed", queue="orders/0", key=key, exc_info=error)
structlog.get_logger().debug("not_shown")
"""


@pytest.fixture
def log(warm):
    """What the script says in a form, with a tail of an error and a key."""

    def say(form, tail=""):
        ended = warm.run(SCRIPT, form, tail)
        assert (ended.returncode, ended.stdout) == (0, "")
        return ended.stderr

    return say


def test_lines_for_machines_are_json_with_the_traceback_and_no_local_variable(log):
    (line,) = log("json").splitlines()
    entry = json.loads(line)
    assert (entry["event"], entry["level"], entry["queue"]) == ("handling_failed", "warning", "orders/0")
    assert entry["key"] == "ada"
    assert entry["exception"][0]["exc_value"] == "the order is wrong"
    assert "card 4711" not in line


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_key_or_an_error_of_the_size_of_a_payload_makes_no_log_of_its_size(log, form):
    text = log(form, "x")
    assert "the order is wrongxxx" in text
    assert "adaxxx" in text
    assert text.count("... (50000") == text.count(" characters)") >= 2
    assert len(text) < 20_000


UNTELLABLE = """
import sys, structlog
from lbg_runtime.cli.log import configure_log
configure_log(as_json=sys.argv[1] == "json")

class Evil(Exception):
    def __getattribute__(self, name):
        raise RuntimeError("evil")

def nested(depth):
    error = ValueError("innermost")
    for _ in range(depth):
        error = ExceptionGroup("outer", [error])
    return error

noted = ValueError("noted")
noted.__notes__ = 5
caused = ValueError("caused")
caused.__cause__ = nested(2_000)
for name, error in {
    "deep": nested(2_000), "wide": ExceptionGroup("wide", [ValueError("many") for _ in range(10_000)]),
    "noted": noted, "evil": Evil(), "caused": caused,
}.items():
    structlog.get_logger().warning(name, queue="orders/0", exc_info=error)
"""


@pytest.mark.parametrize("form", ["json", "text"])
def test_no_error_is_so_strange_that_it_cannot_be_told_of_nor_makes_a_log_of_its_size(warm, form):
    ended = warm.run(UNTELLABLE, form)
    assert ended.returncode == 0
    assert len(ended.stderr) < 60_000
    if form == "text":
        assert all(name in ended.stderr for name in ("deep", "wide", "noted", "evil", "caused"))
        assert ended.stderr.count("orders/0") == 5
        return
    entries = {entry["event"]: entry for entry in map(json.loads, ended.stderr.splitlines())}
    assert [(name, entry["queue"]) for name, entry in entries.items()] == [
        (name, "orders/0") for name in ("deep", "wide", "noted", "evil", "caused")
    ]
    # Whoever handled the message is told at least that it failed, and with what facts.
    assert entries["evil"]["exception"] == "it cannot be told: RuntimeError"
    wide = entries["wide"]["exception"][0]["exceptions"]
    assert [trace[0]["exc_value"] for trace in wide] == ["many"] * 15 + ["9985 more"]
    innermost = entries["deep"]["exception"][0]
    for _ in range(10):
        innermost = innermost["exceptions"][0][0]
    assert innermost["exceptions"][0][0]["exc_value"] == "1 more"


@pytest.mark.parametrize("form", ["json", "text"])
def test_the_notes_of_a_group_of_errors_are_told_as_those_of_one_are(warm, form):
    """Frameworks say in a note what an error was about: the log for machines left out those of groups."""
    script = f"""
import structlog
from lbg_runtime.cli.log import configure_log
configure_log(as_json={form == "json"})
one, group = ValueError("one"), ExceptionGroup("all", [ValueError("inner")])
for error in (one, group):
    error.add_note(f"a note on {{error.args[0]}}")
    structlog.get_logger().error("failed", exc_info=error)
"""
    ended = warm.run(script)
    assert ended.returncode == 0
    assert "a note on one" in ended.stderr
    assert "a note on all" in ended.stderr


def test_lines_for_people_have_the_traceback_and_no_local_variable(log):
    text = log("text")
    assert "ValueError: the order is wrong" in text
    assert "card 4711" not in text
    assert "not_shown" not in text


STRANGERS = """
import asyncio, ctypes, logging, sys, threading, warnings
from lbg_runtime.cli.log import configure_log
configure_log(as_json=sys.argv[1] == "json")
import lbg_runtime.transport.solace.library

class Unclosed:
    def __del__(self):
        raise ValueError("in a finalizer")

async def fail(secret):
    raise ValueError("in a task")

async def main():
    asyncio.create_task(fail("card " + "4711"))
    await asyncio.sleep(0)

def fail_in_thread():
    secret = "card " + "4711"
    raise ValueError("in a thread")

logging.getLogger("somebody").warning("two\\nlines of %s", "theirs")
logging.getLogger("somebody").info("not shown")
logging.getLogger("somebody").error("%d", "no number")
logging.getLogger("somebody").error("y" * 5_000_000)
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("somebody").exception("caught")
warnings.warn("old", DeprecationWarning)
asyncio.run(main())
thread = threading.Thread(target=fail_in_thread, name="theirs")
thread.start()
thread.join()
del thread
leaving = threading.Thread(target=sys.exit, args=(3,))
leaving.start()
leaving.join()
Unclosed()
ctypes.CFUNCTYPE(None)(lambda: 1 / 0)()
secret = "card " + "4711"
raise ValueError("at the top")
"""


def _strangers(form: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", STRANGERS, form], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "card 4711" not in ended.stderr
    assert len(ended.stderr) < 40_000
    return ended.stderr


def test_whoever_writes_a_line_for_machines_it_is_json_with_the_facts_of_all_lines():
    entries = [json.loads(line) for line in _strangers("json").splitlines()]
    assert [(entry["level"], entry["event"].split("\n")[0][:28]) for entry in entries] == [
        ("warning", "two"),
        ("error", "log_line_failed"),
        ("error", "y" * 28),
        ("error", "caught"),
        ("warning", "<string>:30: DeprecationWarn"),
        ("error", "Task exception was never ret"),
        ("error", "thread_failed"),
        ("error", "exception_ignored"),
        ("error", "exception_ignored"),
        ("error", "process_failed"),
    ]
    assert all(entry["timestamp"].endswith("Z") for entry in entries)
    assert all(list(entry)[:3] == ["timestamp", "level", "event"] for entry in entries)
    assert (entries[0]["event"], entries[0]["logger"]) == ("two\nlines of theirs", "somebody")
    failed = [entry["exception"][0]["exc_value"] for entry in entries if "exception" in entry]
    assert failed[1:] == [
        "division by zero",
        "in a task",
        "in a thread",
        "in a finalizer",
        "division by zero",
        "at the top",
    ]


def test_whoever_writes_a_line_for_people_it_has_their_form():
    text = _strangers("text")
    assert text.count("Traceback (most recent call last)") == 7
    assert "--- Logging error ---" not in text


def test_a_line_of_a_library_tells_of_the_message_that_is_handled(warm):
    script = """
import logging
from types import SimpleNamespace
from lbg_runtime.cli.log import configure_log
from lbg_runtime.runtime.runners.handling import CURRENT_HANDLING
configure_log(as_json=True)
message = SimpleNamespace(properties={"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"})
CURRENT_HANDLING.set(SimpleNamespace(queue="orders/0", epoch=3, key="k", delivery=SimpleNamespace(message=message)))
logging.getLogger("theirs").warning("slow")
"""
    ended = warm.run(script)
    assert ended.returncode == 0
    entry = json.loads(ended.stderr)
    assert (entry["event"], entry["queue"], entry["epoch"], entry["key"]) == ("slow", "orders/0", 3, "k")
    assert (entry["trace_id"], "span_id" in entry) == ("a" * 32, False)


def test_a_module_that_gives_its_logger_a_level_sees_its_lines_and_one_that_sets_logging_up_does_not(warm):
    script = """
import logging
from lbg_runtime.cli.log import configure_log
configure_log(as_json=True)
logging.basicConfig(level=logging.DEBUG)
logging.getLogger("shop.orders").info("not shown")
logging.getLogger("shop.orders").setLevel(logging.INFO)
logging.getLogger("shop.orders").debug("not shown")
logging.getLogger("shop.orders").info("shown")
"""
    ended = warm.run(script)
    assert [json.loads(line)["event"] for line in ended.stderr.splitlines()] == ["shown"]


WHOSE = """
import logging, sys, threading
import structlog
from lbg_runtime.cli.log import configure_log, name_member

class Mute:
    def __repr__(self):
        raise LookupError("for a test")

configure_log(as_json=sys.argv[1] == "json")
log = structlog.get_logger()
log.info("begun")
name_member("shop-1", is_alone=sys.argv[2] == "alone")
log.info("told")
thread = threading.Thread(target=log.info, args=("told_by_thread",))
thread.start()
thread.join()
logging.getLogger("theirs").warning("told_by_library")
log.info("told_by_handler", member="a customer")
log.info("untold", member=[Mute()])
"""


def _whose(warm: Warm, form: str, company: str) -> str:
    ended = warm.run(f"{WHOSE}\nimport os; print(os.getpid())", form, company)
    assert ended.returncode == 0
    return ended.stderr.replace(f'"process":{ended.stdout.strip()}', '"process":"ours"').replace(
        f'"process": {ended.stdout.strip()}', '"process":"ours"'
    )


def test_each_line_for_machines_says_whose_it_is(warm):
    entries = [json.loads(line) for line in _whose(warm, "json", "alone").splitlines()]
    assert [(entry["event"], entry.get("process"), entry.get("member")) for entry in entries] == [
        ("begun", "ours", None),
        ("told", None, "shop-1"),
        ("told_by_thread", None, "shop-1"),
        ("told_by_library", None, "shop-1"),
        ("told_by_handler", None, "a customer"),
        ("log_line_failed", None, "shop-1"),
    ]
    assert all(list(entry)[:3] == ["timestamp", "level", "event"] for entry in entries)


def test_lines_for_people_say_whose_they_are_where_several_processes_share_the_terminal(warm):
    assert "shop-1" not in _whose(warm, "text", "alone")
    begun, *told = _whose(warm, "text", "together").splitlines()
    assert "process" not in begun
    assert ["shop-1" in line for line in told] == [True, True, True, False, True]


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize("fact", ["{('a', 1): Mute()}", "[Mute()]"])
def test_what_cannot_be_said_fails_nobody_who_says_it(warm, form, fact):
    script = f"""
import structlog
from lbg_runtime.cli.log import configure_log

class Mute:
    def __repr__(self):
        raise LookupError("for a test")

configure_log(as_json={form == "json"})
structlog.get_logger().info("totals", by_shop={fact})
"""
    ended = warm.run(script)
    assert ended.returncode == 0
    (line,) = ended.stderr.splitlines()
    assert "log_line_failed" in line
    assert "totals" in line
    if form == "json":
        assert json.loads(line)["line"] == "totals"


def test_no_line_of_a_log_on_a_full_disk_raises_whoever_writes_it(warm):
    script = f"""{SCRIPT}
import logging, os
logging.getLogger("somebody").warning("else")
os._exit(7)
"""
    with open("/dev/full", "w") as full:
        for form in ("json", "text"):
            assert warm.run(script, form, "", stderr=full).returncode == 7


FORGETFUL = """
import asyncio, warnings
from lbg_runtime import Handlers
from lbg_runtime.cli.log import configure_log
from lbg_runtime.testing import AwaitForgotten, VirtualTimeLoop, running

configure_log(as_json=True)
handlers = Handlers()

async def write(): ...

@handlers.handler("orders/>")
async def on_order(message):
    write()

async def main():
    try:
        async with running(handlers) as group:
            await group.publish("orders/new", "1", "2", key="k7")
            await group.settled()
    except AwaitForgotten:
        write()

for action in (None, "ignore", "error"):
    if action:
        warnings.simplefilter(action)
    asyncio.Runner(loop_factory=VirtualTimeLoop).run(main())
"""


def test_every_coroutine_that_is_never_awaited_is_an_error_with_the_message_that_was_handled():
    """Whatever a user has chosen to become of warnings, such as nothing."""
    command = [sys.executable, "-c", FORGETFUL]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    entries = [json.loads(line) for line in ended.stderr.splitlines()]
    told = [each for each in entries if each["event"] == "coroutine_never_awaited"]
    assert len(told) == 9
    for first in (0, 3, 6):
        # Twice from the same line of the handler.
        in_handler = [(each["level"], each["queue"][:5], each["key"], each["place"]) for each in told[first:][:2]]
        assert in_handler == [("error", "test/", "k7", "<string>:14")] * 2
        assert "key" not in told[first + 2]
    assert {each["coroutine"] for each in told} == {"write (<string>:10)"}
    assert "was never awaited" not in ended.stderr
