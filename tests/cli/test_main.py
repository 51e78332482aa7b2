"""The command line as a process: standard streams that are not there, or take nothing more.

More than 400 lines, as all of them stand on the same ways to break a stream.
"""

import errno
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

import pytest

import lbg_runtime
from lbg_runtime.cli.importing import importing, missing_extra
from lbg_runtime.cli.main import lacks_descriptors
from tests.addresses import OWN_HOST, own_ports
from tests.patience import PATIENCE_S
from tests.processes import running, until_line

pytestmark = pytest.mark.real_time

CONFIG = """
connection: {transport: embedded, host: "tcp://127.0.0.1:0"}
group: {name: orders, hash_prefix: h, hash_count: 4, queue_count: 2, provision: create_missing}
handlers: [shop]
"""

SHOP = """
from lbg_runtime import Handlers
handlers = Handlers()

@handlers.handler("orders/>")
async def on_order(message):
    pass
"""

LBG = [sys.executable, "-m", "lbg_runtime.cli"]


@pytest.fixture
def folder(tmp_path):
    """A folder with settings of a member that can start."""
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


@contextmanager
def _closed(number):
    yield {"preexec_fn": lambda: os.close(number)}


@contextmanager
def _full():
    with open("/dev/full", "w") as full:
        yield {"stderr": full}


@contextmanager
def _unread():
    reading, writing = os.pipe()
    os.close(reading)
    try:
        yield {"stderr": writing}
    finally:
        os.close(writing)


@contextmanager
def _stopped():
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        with suppress(BlockingIOError):
            while True:
                os.write(writing, bytes(4096))
        yield {"stderr": writing}
    finally:
        os.close(reading)
        os.close(writing)


STREAMS = {
    "no input": lambda: _closed(0),
    "no output": lambda: _closed(1),
    "no errors": lambda: _closed(2),
    "errors on a full disk": _full,
    "errors that nobody reads": _unread,
    "errors that do not wait for their reader": _stopped,
}


@pytest.fixture
def begin(lbg, folder):
    """Begins `lbg` with these arguments and streams; where Python itself finds one closed, it is no copy."""

    def begin_with(*arguments, **given):
        if "preexec_fn" in given:
            return running([*LBG, *arguments], cwd=folder, text=True, **given)
        return lbg.running(folder, *arguments, **given)

    return begin_with


@pytest.mark.parametrize("streams", STREAMS)
def test_a_member_starts_and_leaves_clean_whatever_its_streams_are(begin, folder, streams):
    with STREAMS[streams]() as given, begin("run", "--journal", "runs", **given) as process:
        while not list((folder / "runs").glob("*.member.jsonl")):
            assert process.poll() is None, "it ended before it had a journal"
            time.sleep(0.01)  # a file of another process has no event to wait for
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


def test_publishing_without_an_input_is_no_reason_to_abort(folder):
    with socket.socket() as bound_only:
        # Bound and not listening: nobody else can have the port, and nobody answers.
        bound_only.bind(("127.0.0.1", 0))
        (folder / "config.yaml").write_text(CONFIG.replace(":0", f":{bound_only.getsockname()[1]}"))
        command = [*LBG, "publish", "--topic", "orders/new", "--key", "k"]
        with _closed(0) as given:
            ended = subprocess.run(
                command, cwd=folder, stderr=subprocess.PIPE, check=False, timeout=PATIENCE_S, **given
            )
    assert (ended.returncode, ended.stderr[:21]) == (2, b"lbg: connection.host:")


@pytest.mark.parametrize("streams", [name for name in STREAMS if "errors" in name])
def test_the_exit_code_tells_of_a_mistake_where_its_line_cannot(begin, streams):
    with STREAMS[streams]() as given, begin("run", "--config", "none.yaml", **given) as process:
        assert process.wait(PATIENCE_S) == 2


@pytest.mark.parametrize("streams", [name for name in STREAMS if "errors" in name])
def test_a_remark_that_finds_no_room_changes_neither_output_nor_exit_code(begin, streams):
    with (
        STREAMS[streams]() as given,
        begin("group", "moves", ".", stdout=subprocess.PIPE, **given) as process,
    ):
        output, _ = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, output) == (3, "owner changes: 0\n")


def test_a_broker_whose_address_finds_no_room_to_be_told_runs_nevertheless(lbg, folder):
    # It cannot tell a port that the system chose.
    (port,) = own_ports(1)
    with _full() as given, lbg.running(folder, "broker", "--smf", f"{OWN_HOST}:{port}", **given) as process:
        while True:
            assert process.poll() is None, "it ended before it listened"
            with suppress(ConnectionRefusedError), socket.create_connection((OWN_HOST, port)):
                break
            time.sleep(0.01)  # a port of another process has no event to wait for
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


def test_what_the_encoding_of_the_output_has_not_is_shown_by_its_number(folder):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "LBG_MEMBER_ID": "ü"}
    ended = subprocess.run(
        [*LBG, "check"], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert ended.returncode == 0, ended.stderr
    assert "name \\xfc" in ended.stdout


def test_a_mistake_is_told_in_a_line_that_no_terminal_obeys(lbg, folder):
    ended = lbg(folder, "why", "k", "--config", "\x1b[2J.yaml")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("lbg: \\x1b[2J")
    # A line break in what it quotes made a second line of ours.
    ended = lbg(folder, "why", "k", "--config", "a\nlbg: done.yaml")
    assert ended.stderr == "lbg: a\\nlbg: done.yaml: No such file or directory; expected a readable settings file\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("runn",), "lbg: lbg: No such command 'runn'. Did you mean 'run'?; expected what 'lbg --help' lists"),
        (("run", "--nosuch"), "lbg: lbg run: No such option: --nosuch; expected what 'lbg run --help' lists"),
        (("group", "plan", "x\ny"), None),
        (
            ("landing", "ls"),
            "lbg: lbg landing ls: Missing argument 'directory'; expected what 'lbg landing ls --help' lists",
        ),
        (("run", "--processes", "many"), None),
        (
            ("parked", "drop", "k", "--config"),
            "lbg: lbg parked drop: Option '--config' requires an argument; "
            "expected what 'lbg parked drop --help' lists",
        ),
    ],
)
def test_a_command_line_that_cannot_be_read_is_told_in_one_line(lbg, folder, arguments, told):
    ended = lbg(folder, *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("lbg: lbg")
    assert ended.stderr.count("\n") == 1
    assert told is None or ended.stderr == told + "\n"


@pytest.mark.parametrize("arguments", [(), ("group",)])
def test_without_a_command_its_help_is_shown_and_no_mistake_is_told(lbg, folder, arguments):
    ended = lbg(folder, *arguments)
    assert (ended.returncode, ended.stderr) == (2, "")
    assert "Usage: lbg" in ended.stdout


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [("check", "--json"), ("--help",)])
def test_output_that_finds_no_room_is_told_in_one_line(folder, arguments, unbuffered):
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [*LBG, *arguments], cwd=folder, env=environment, stdout=full, stderr=subprocess.PIPE, text=True,
            check=False, timeout=PATIENCE_S,
        )  # fmt: skip
    assert ended.stderr == "lbg: standard output: No space left on device; expected room for what is printed\n"
    assert ended.returncode == 1


def test_output_whose_reader_has_gone_is_no_traceback(lbg, folder):
    with _unread() as given:
        ended = lbg(folder, "check", stdout=given["stderr"])
    assert (ended.returncode, ended.stderr) == (1, "")


LATE_SIGNALS = """
import atexit, signal
def ask_again():
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.raise_signal(number)
atexit.register(ask_again)
"""

# Cancelled when the run is over, while its event loop is being closed.
LATER_TASK = """
@handlers.lifespan
async def life():
    async def go_on():
        try:
            await asyncio.Event().wait()
        finally:
            ask_again()
    task = asyncio.create_task(go_on())
    await asyncio.sleep(0)
    yield task
"""

STAYING_THREAD = """
import threading
threading.Thread(target=threading.Event().wait, name="the-users-own").start()
"""

SOON = "from lbg_runtime.cli import main; main.EXIT_GRACE_S = 0.1; main.main()"


def test_who_asks_again_while_a_member_is_on_its_way_out_does_not_change_how_it_has_left(lbg, folder):
    (folder / "shop.py").write_text("import asyncio" + LATE_SIGNALS + SHOP + LATER_TASK)
    with lbg.running(folder, "run", "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        until_line(process, '"event": "member_started"')
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    assert json.loads(output)["clean"] is True


def test_who_asks_a_member_to_leave_that_has_told_of_a_mistake_does_not_change_its_exit_code(lbg, folder):
    (folder / "shop.py").write_text(LATE_SIGNALS + "raise ValueError('no database')")
    ended = lbg(folder, "run")
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.startswith("lbg: handlers: shop: ValueError: no database")
    assert len(ended.stderr.splitlines()) == 1


TAKES_ALL_FILES = """
import os, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

@handlers.lifespan
async def pool():
    try:
        while True:
            os.dup(2)
    except OSError:
        yield
"""


def test_a_process_without_a_descriptor_left_says_so_in_one_line(lbg, folder):
    """A traceback tells what failed first, here a module that the first bind needs, but not what is to be done."""
    (folder / "shop.py").write_text(SHOP + TAKES_ALL_FILES)
    ended = subprocess.run([*LBG, "run"], cwd=folder, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert "lbg: process: no file descriptor is left of 200; expected a higher limit of open files" in last
    assert "process_failed" not in ended.stderr


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EINVAL])
def test_that_no_descriptor_is_left_is_seen_wherever_it_was_raised_and_in_errors_that_are_their_own_cause(number):
    first = OSError(number, "first")
    inner = RuntimeError("later")
    inner.__context__, inner.__cause__ = first, inner
    assert lacks_descriptors(ExceptionGroup("all", [ValueError(), inner])) == (number == errno.EMFILE)


def test_a_thread_of_a_handler_module_does_not_keep_a_member_that_has_left(warm, folder):
    (folder / "shop.py").write_text(STAYING_THREAD + SHOP)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with warm.running(SOON, "run", "--json", cwd=folder, **streams) as process:
        until_line(process, '"event": "member_started"')
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    assert json.loads(output)["clean"] is True
    told = json.loads(errors.splitlines()[-1])
    assert (told["event"], told["threads"], told["exit_code"]) == ("exit_forced", ["the-users-own"], 0)


def full_pipe():
    """The ends of a pipe that takes nothing more."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4_096))
    os.set_blocking(writer, True)
    return reader, writer


def test_a_mistake_that_nobody_reads_ends_the_process_all_the_same(warm, folder):
    reader, writer = full_pipe()
    try:
        with warm.running(SOON, "run", "--config", "no", cwd=folder, stderr=writer) as process:
            assert process.wait(PATIENCE_S) == 2
    finally:
        os.close(reader)
        os.close(writer)


# Unbuffered it blocks in the call that prints, else where the interpreter flushes.
@pytest.mark.parametrize(("prints", "unbuffered"), [("report", False), ("report", True), ("handler", False)])
def test_what_a_member_prints_and_nobody_reads_does_not_keep_it(warm, folder, prints, unbuffered):
    (folder / "shop.py").write_text(SHOP + ("print('of a handler module')" if prints == "handler" else ""))
    reader, writer = full_pipe()
    soon = f"from lbg_runtime.runtime import shutdown; shutdown.EXIT_GRACE_S = 0.1; {SOON}"
    arguments = ["run", *(["--json"] if prints == "report" else [])]
    options = {"cwd": folder, "stdout": writer, "stderr": subprocess.PIPE}
    try:
        with (
            running([sys.executable, "-u", "-c", soon, *arguments], text=True, **options)
            if unbuffered
            else warm.running(soon, *arguments, **options)
        ) as process:
            until_line(process, '"event": "member_started"')
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize(("arguments", "code"), [(("check",), 0), (("asyncapi",), 0), (("run", "--config", "no"), 2)])
def test_a_thread_of_a_handler_module_does_not_keep_a_command_that_is_over(warm, folder, arguments, code):
    (folder / "shop.py").write_text(STAYING_THREAD + SHOP)
    # Also where what has started the thread is not the module that the mistake is in.
    soon = SOON if code == 0 else STAYING_THREAD + SOON
    ended = warm.run(soon, *arguments, cwd=folder)
    assert ended.returncode == code, ended.stderr
    assert "exit_forced" in ended.stderr


IN_BASE_INSTALL = """
import sys
sys.modules["pyarrow"] = sys.modules["numpy"] = sys.modules["watchfiles"] = None
from lbg_runtime.cli.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("validate .", "validate"), ("validate --live .", "validate"), ("advise .", "validate"),
        ("group moves .", "validate"), ("land --dir log", "validate"), ("landing ls .", "validate"),
        ("landing verify .", "validate"), ("replay . --to-topic orders", "validate"), ("run --reload", "dev"),
        ("bench handback", "validate"), ("bench landing", "validate"), ("bench moves", "validate"),
        ("bench pipeline", "validate"), ("bench restripe", "validate"), ("bench soak", "validate"),
        ("bench takeover", "validate"),
    ],
)  # fmt: skip
def test_an_extra_that_is_not_installed_is_one_line_with_its_name(lbg, folder, command, extra):
    _assert_not_installed(lbg(folder, *command.split(), without=("pyarrow", "numpy", "watchfiles")), extra)


def test_an_extra_is_not_needed_to_start(folder):
    program = [sys.executable, "-c", IN_BASE_INSTALL, "demo"]
    ended = subprocess.run(program, cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    _assert_not_installed(ended, "validate")


def _assert_not_installed(ended, extra):
    assert "Traceback" not in ended.stderr
    assert ended.stderr.endswith(f": not installed; expected pip install 'lbg-runtime[{extra}]'\n")
    assert ended.returncode == 2


def test_every_extra_is_known_by_the_module_that_is_missed():
    modules = ("pyarrow", "numpy.typing", "psycopg", "opentelemetry.trace", "watchfiles", "pyspark", "duckdb", "lark")
    found = [missing_extra(ModuleNotFoundError(name=module)) for module in modules]
    extras = ["validate", "validate", "postgres", "otel", "dev", "spark", "bench", "broker"]
    assert [each.expected for each in found] == [f"pip install 'lbg-runtime[{extra}]'" for extra in extras]
    for module in ("typer", "lbg_runtime.nothing", None):
        assert missing_extra(ModuleNotFoundError(name=module)) is None


def test_the_version_is_that_of_the_package():
    ended = subprocess.run([*LBG, "--version"], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert ended.stdout == f"lbg_runtime {lbg_runtime.__version__}\n"


@pytest.mark.parametrize("module", ["lbg_runtime.cli.run", "lbg_runtime.runtime.app"])
def test_an_interrupt_while_the_command_is_imported_is_no_traceback(module):
    interrupted = f"""
import signal, sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
from lbg_runtime.cli.__main__ import main
main()
"""
    command = [sys.executable, "-c", interrupted, "run"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, "")


@pytest.mark.parametrize(
    "moment",
    [
        "sys.meta_path.insert(0, Interrupting())",
        "import lbg_runtime.cli.importing as importing; importing.end_when_asked = interrupt",
        "import gc; gc.enable = interrupt",
        "import gc; gc.freeze = interrupt",
    ],
    ids=["as it begins", "before the import", "as it ends", "after it"],
)
def test_an_interrupt_around_the_import_of_the_command_is_no_traceback(moment):
    interrupted = f"""
import signal, sys
def interrupt():
    signal.raise_signal(signal.SIGINT)
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "lbg_runtime.cli.importing":
            interrupt()
from lbg_runtime.cli.__main__ import main
{moment}
main()
"""
    command = [sys.executable, "-c", interrupted, "check"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert (ended.returncode, ended.stderr) in [(130, ""), (-signal.SIGINT, "")]


def test_hardly_anything_is_imported_before_an_interrupt_is_no_traceback():
    code = """
import sys
before = {*sys.modules}
import lbg_runtime.cli.__main__
print(*sorted({*sys.modules} - before - {"importlib", "warnings"}))
"""
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert ended.stdout.split() == ["lbg_runtime", "lbg_runtime.cli", "lbg_runtime.cli.__main__"]


def test_garbage_is_looked_for_as_before_when_all_is_imported():
    with importing():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with importing():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_reads_settings_is_not_imported_before_it_is_known_that_settings_are_wanted():
    code = "import sys, lbg_runtime.cli.main; sys.exit('pydantic' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)


def test_of_the_commands_only_the_one_that_is_wanted_is_imported():
    code = "import sys; from lbg_runtime.cli.main import command_line; command_line('run'); command_line('--version')"
    others = "{'check', 'publish', 'bench', 'demo', 'group'}"
    code += f"; sys.exit(bool({others} & {{name.rpartition('.cli.')[2] for name in sys.modules}}))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)
