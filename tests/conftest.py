"""Every test has virtual time unless marked `real_time`, a log of its own, and no leave to skip where CI forbids it."""

import asyncio
import gc
import importlib.util
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from itertools import groupby, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import hypothesis
import pytest
import structlog

from lbg_runtime.runtime.handlers.unawaited import UNAWAITED_HOOK
from lbg_runtime.testing.virtual_time import VirtualTimeLoop

if TYPE_CHECKING:
    from tests.certificates import Certificates
    from tests.warm import Warm, WarmLbg

IS_GATE = bool(os.environ.get("LBG_FORBID_SKIPS"))
"""Whether this run decides about a change: it is to say the same of the same tree, and nothing may be left out."""

# Where nothing is kept compiled, every process that a test starts compiles our whole tree again, which is half of its
# start, and every worker rewrites the assertions of every test.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A run in the background of a shell ignores SIGINT, and so would every process that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Each answer of an application that is called in this process asks httpx whether it runs under trio: what is not
# installed is looked for along the whole path, a fifth of a request.
if importlib.util.find_spec("sniffio") is None:
    sys.modules["sniffio"] = None  # type: ignore[assignment]

# Neither a deadline nor a judgement of how slow examples are: both say more about the machine, which others may keep
# busy. Elsewhere than at the gate every run tries other examples; what one of them finds becomes a test of its own.
hypothesis.settings.register_profile(
    "tests", deadline=None, derandomize=IS_GATE, suppress_health_check=(hypothesis.HealthCheck.too_slow,)
)
hypothesis.settings.load_profile("tests")

PYTESTS_HOOKS = pytest.StashKey["Hooks"]()

LONGEST_FIRST = (
    "tests/pipeline/spark/test_on_spark.py",
    "tests/cli/bench/",
    "tests/end_to_end/",
    "tests/sim/",
    "tests/dashboard/test_page.py",
    "tests/testing/test_pytest_plugin.py",
    "tests/test_typed_users.py",
    "tests/sidecar/test_end_to_end.py",
    "tests/pipeline/spark/",
    "tests/transport/",
    "tests/docs/",
    "tests/docker/",
    "tests/cli/",
    "tests/pipeline/landing/",
    "tests/broker/store/",
    "tests/validator/",
    "tests/runtime/",
    "tests/broker/engine/",
    "tests/core/",
    "tests/admin/",
)
"""Where the files are that take long, the longest first; all others after them."""


def pytest_configure(config: pytest.Config) -> None:
    gone = [path for path in LONGEST_FIRST if not (Path(__file__).parents[1] / path).exists()]
    assert not gone, f"LONGEST_FIRST names what is not there: {gone}"
    # Left alone, the plugin for several workers begins with the files that have the most tests, which are quick ones.
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file, or a class of one, is one worker's. What takes long begins first, so that in the end nobody waits for the
    last of them; and the files that wait for sockets and processes are spread evenly among those that compute, so that
    all along there is something for each core to do.
    """
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)

    def turn(file: str) -> int:
        return next((turn for turn, path in enumerate(LONGEST_FIRST) if file.startswith(path)), len(LONGEST_FIRST))

    def waits(file: str) -> bool:
        return any(item.get_closest_marker("real_time") for item in files[file])

    kinds = [list(kind) for _, kind in groupby(sorted(files, key=lambda file: (waits(file), turn(file))), key=waits)]
    shares = {file: place / len(kind) for kind in kinds for place, file in enumerate(kind)}
    items[:] = [item for file in sorted(shares, key=shares.__getitem__) for item in files[file]]


def import_share(config: pytest.Config) -> None:
    """Import the test modules of this worker's share that were not imported before, as from a fresh clone: pytest then
    rewrites their assertions, which takes as long as all else of the collection, and which each worker did for all."""
    if (worker := getattr(config, "workerinput", None)) is None:
        return
    root, kept = Path(__file__).parents[1], f"{sys.implementation.cache_tag}-pytest-{pytest.__version__}.pyc"
    number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    share = sorted(root.glob("tests/**/test_*.py"))[number::count]
    new = [path for path in share if not (path.parent / "__pycache__" / f"{path.stem}.{kept}").exists()]
    # Some say what else is to be rewritten before it is imported.
    for path in [*root.glob("tests/**/conftest.py"), *new] if new else ():
        # What is wrong with one is told when it is collected.
        with suppress(Exception, pytest.skip.Exception):
            import_module(".".join(path.relative_to(root).with_suffix("").parts))


class Hooks(NamedTuple):
    """What Python calls with what nobody has caught."""

    of_process: Any
    of_threads: Any
    of_unraisable: Any
    of_unawaited: Any

    @classmethod
    def current(cls) -> Self:
        return cls(sys.excepthook, threading.excepthook, sys.unraisablehook, getattr(warnings, UNAWAITED_HOOK))

    def put_back(self) -> None:
        sys.excepthook, threading.excepthook, sys.unraisablehook, on_unawaited = self
        setattr(warnings, UNAWAITED_HOOK, on_unawaited)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """What is collected stays to the end: a third of a million objects that need not be looked through for garbage, nor
    while they come, which takes a sixth of the time."""
    gc.disable()
    try:
        import_share(session.config)
        return (yield)
    finally:
        # First: at its first use Hypothesis makes a source of randomness. From Python 3.14 on, it warns if that is only
        # after this, as it finds nobody who refers to the source: what is frozen does not count.
        hypothesis.find(hypothesis.strategies.booleans(), bool)
        # With the little garbage among it: to look for that takes half a second.
        gc.freeze()
        gc.enable()
        # Of the time of a test that makes many objects a tenth was spent looking for garbage where there is none.
        gc.set_threshold(20_000)
        # Those of pytest, by which what nobody has caught fails a test.
        session.config.stash[PYTESTS_HOOKS] = Hooks.current()


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.get_closest_marker("real_time") is None:
        return {"virtual_time": VirtualTimeLoop}
    return {"real_time": asyncio.new_event_loop}


@pytest.fixture(autouse=True)
def own_process(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    """What a command called in this process leaves behind is gone after the test. One fixture for all of it, as every
    test pays for each."""
    hooks = pytestconfig.stash[PYTESTS_HOOKS]
    # The fixtures of a whole file come first, and may have called a command: their hooks are not to stay either.
    hooks.put_back()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    path, last_module = sys.path.copy(), next(reversed(sys.modules))
    yield
    # The log has been set up for a standard error that is gone.
    structlog.reset_defaults()
    hooks.put_back()
    # Signals are left ignored, as what follows a command is the end: not so here, nor in processes that are started.
    for number, handler in handlers.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)
    # A later test is to find neither the folder that handlers were imported from, nor these modules, which may have the
    # names of its own.
    sys.path[:] = path
    for name in [*takewhile(lambda name: name != last_module, reversed(sys.modules))]:
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and Path(file).is_relative_to(tmp_path_factory.getbasetemp()):
            del sys.modules[name]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> "Certificates":
    """Imported here, as most runs need none."""
    from tests.certificates import Certificates

    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def warm() -> "Iterator[Warm]":
    """See `tests.warm`; imported here, as most runs need none."""
    from tests.warm import warm_process

    with warm_process() as process:
        yield process


@pytest.fixture(scope="session")
def lbg(warm: "Warm") -> "WarmLbg":
    """See `tests.warm`."""
    from tests.warm import WarmLbg

    return WarmLbg(warm)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """At the gate a file that is skipped as a whole is a failed one."""
    report = yield
    if report.skipped and IS_GATE:
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid} was skipped, and LBG_FORBID_SKIPS is set: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """At the gate a skipped test is a failed one: what a test needs is installed there."""
    report = yield
    if report.skipped and IS_GATE and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, and LBG_FORBID_SKIPS is set: {report.longrepr}"
    return report
