"""A group of real processes in an empty folder: broker, members, publisher; every wait is for a fact.

Facts come from the members' journals, never from a guess about time: a step ends when the journals show its result, and
fails with a `StepStuck` that names the step if they do not in time.
"""

import random
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
import orjson

from lbg_runtime.cli.dashboard import READY as PAGE_READY
from lbg_runtime.cli.live.board import Board
from lbg_runtime.cli.live.processes import Child, lbg_process
from lbg_runtime.cli.live.tail import JournalTail
from lbg_runtime.model.errors import LbgError
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.record import FILE_SUFFIXES

POLL_S = 0.1
STEP_TIMEOUT_S = 90.0
"""What takes longer hangs, also on a busy machine."""
COMMAND_TIMEOUT_S = 120.0

PUBLISHER = "publisher"
BROKER_READY = "lbg broker ready: "


class StepStuck(LbgError):
    """A step did not come to its end in time."""

    def __init__(self, step: str, timeout_s: float) -> None:
        super().__init__(f"waited {timeout_s:.0f} s for: {step}")
        self.step = step


def member_name(index: int) -> str:
    return f"member-{index}"


@dataclass(slots=True)
class LiveGroup:
    """Used as a context; whatever happens, every process is gone when it ends. `on_look` is called after every look."""

    folder: Path
    shape: GroupShape
    sections: Mapping[str, Mapping[str, object]]
    """`membership` and `rebind`, as in config.yaml; counted members are given their index, others their id."""
    on_look: Callable[[], None] = lambda: None
    is_administered: bool = False
    """The queues are made and changed by `lbg group`, over SEMP; otherwise members make them."""
    has_faults: bool = False
    """The broker takes commands for faults at `fault_address`."""
    status_ports: Sequence[int] = ()
    """Ports where members report their status, by index; without any they do not report it."""
    board: Board = field(default_factory=Board)
    handlers: str = "lbg_runtime.cli.live.handlers"
    """Module with the members' handlers."""
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _children: dict[str, Child] = field(default_factory=dict)
    """Processes that are meant to be running now."""
    _addresses: dict[str, str] = field(default_factory=dict)
    """The broker's addresses, by protocol."""
    _tail: JournalTail = field(init=False)

    def __post_init__(self) -> None:
        self._tail = JournalTail(self.journals)

    @property
    def journals(self) -> Path:
        """Folder of the journals and the ledger."""
        return self.folder / "journals"

    @property
    def fault_address(self) -> str:
        """Host and port where a broker that was started with faults takes commands."""
        return self._addresses["faults"]

    @property
    def running(self) -> frozenset[str]:
        """Names of the processes that are meant to be running."""
        return frozenset(self._children)

    def pid(self, name: str) -> int:
        """Process id of a process that is meant to be running."""
        return self._children[name].pid

    @property
    def is_counted(self) -> bool:
        """Whether members have numbers."""
        return self.sections["membership"].get("mode") == "static"

    async def __aenter__(self) -> Self:
        self.journals.mkdir(parents=True)
        await self._stack.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    # -- processes

    async def start_broker(self) -> None:
        """Start the development broker, and write the settings that point to it."""
        semp = ("--semp", "127.0.0.1:0") if self.is_administered else ()
        faults = ("--faults", "127.0.0.1:0") if self.has_faults else ()
        broker = await self._start("broker", "broker", "--smf", "127.0.0.1:0", *semp, *faults)
        await self.until("the broker is ready", lambda: bool(_ready_line(broker.log, BROKER_READY)))
        listed = _ready_line(broker.log, BROKER_READY).split(", ")
        self._addresses = dict(entry.split(" ", 1) for entry in listed)
        self._write_config()
        if self.is_administered:
            await self.carry_out("group", "create")

    async def start_member(self, index: int) -> None:
        """Start a member; it may take a second until it has joined."""
        which = ("--member-index", str(index)) if self.is_counted else ("--member-id", member_name(index))
        status = ("--status-port", str(self.status_ports[index])) if self.status_ports else ()
        await self._start(member_name(index), "run", *self._config_option, *which, *status)

    async def start_publisher(self, rate_per_s: int, key_count: int) -> None:
        """Publish at this rate until it is stopped."""
        await self._start(
            PUBLISHER, "publish", *self._config_option, "--topic", "orders/event", "--ledger", str(self.journals),
            "--rate", str(rate_per_s), "--keys", str(key_count),
        )  # fmt: skip

    async def start_dashboard(self) -> str:
        """Start the live page; returns its address."""
        asked = [option for port in self.status_ports for option in ("--status", f"127.0.0.1:{port}")]
        page = await self._start("dashboard", "dashboard", *self._config_option, *asked)
        await self.until("the page is shown", lambda: bool(_ready_line(page.log, PAGE_READY)))
        return _ready_line(page.log, PAGE_READY)

    async def carry_out(self, *command: str) -> None:
        """Run a command on the group to its end; raises `ProcessEnded` unless its exit code is 0, and `StepStuck` if it
        does not end in time."""
        name = "-".join(command)
        log = self.folder / f"{name}.log"
        async with lbg_process(name, [*command, *self._config_option], log) as child:
            step = f"`lbg {' '.join(command)}` has ended"
            await self.until(step, lambda: child.process.returncode is not None, COMMAND_TIMEOUT_S)
            if child.process.returncode != 0:
                child.ensure_running()

    async def begin(self, name: str, *command: str) -> None:
        """Start a command on the group, which is then one of its processes."""
        await self._start(name, *command, *self._config_option, leaves_with_parent=False)

    async def stop(self, name: str) -> None:
        """Stop a process by SIGTERM; raises `ProcessEnded` unless it leaves in time, with exit code 0."""
        await self._children.pop(name).stop()
        self.look()
        self.board.member_gone(name)

    async def stop_all(self) -> None:
        """Stop every process that is meant to be running, the broker last; raises as `stop` does."""
        for name in sorted(self.running - {"broker"}):
            await self.stop(name)
        await self.stop("broker")

    async def kill(self, name: str) -> None:
        """End a process by SIGKILL."""
        await self._children.pop(name).kill()
        self.look()
        self.board.member_gone(name)

    async def _start(self, name: str, *command: str, leaves_with_parent: bool = True) -> Child:
        option = ("--exit-with-parent",) if leaves_with_parent else ()
        child = await self._stack.enter_async_context(
            lbg_process(name, [*command, *option], self.folder / f"{name}.log")
        )
        self._children[name] = child
        return child

    # -- waiting

    async def until(self, step: str, reached: Callable[[], bool], timeout_s: float = STEP_TIMEOUT_S) -> None:
        """Look until this holds; raises `StepStuck`, and `ProcessEnded` if a process leaves by itself."""
        with anyio.move_on_after(timeout_s):
            while True:
                self.look()
                if reached():
                    return
                await anyio.sleep(POLL_S)
        raise StepStuck(step, timeout_s)

    async def play_on(self, seconds: float) -> None:
        """Let everything run for this long."""
        with anyio.move_on_after(seconds):
            while True:
                self.look()
                await anyio.sleep(POLL_S)

    def look(self) -> None:
        """Take in what the journals say by now."""
        for child in self._children.values():
            child.ensure_running()
        for record in self._tail.read():
            self.board.apply(record.member, record.incarnation, record.fields)
        self.on_look()

    # -- facts

    def everything_is_fed(self) -> bool:
        """Whether every queue is fed to some member."""
        return len(self.board.owned_queues()) == self.shape.queue_count

    def is_balanced(self, members: int) -> bool:
        """Whether every queue is fed to a member, and exactly this many members have their share."""
        least = self.shape.queue_count // members
        shares = [len(self.board.active_queues(name)) for name in self.running if name.startswith("member-")]
        return self.everything_is_fed() and sum(share >= least for share in shares) == members

    def is_at_home(self, members: int) -> bool:
        """Whether every queue is fed to the member that it belongs to, of exactly this many."""
        if not self.is_counted:
            return self.is_balanced(members)
        return all(self.board.primaries_at_home(member_name(index)) for index in range(members))

    def published(self) -> int:
        """Messages that the finished ledgers say were confirmed."""
        count = 0
        for path in self.journals.glob(f"*{FILE_SUFFIXES['ledger']}"):
            for line in path.read_bytes().splitlines():
                record = orjson.loads(line)
                if record["kind"] == "confirmed":
                    count += record["last_seq"] - record["first_seq"] + 1
        return count

    # -- settings

    @property
    def _config_option(self) -> tuple[str, str]:
        return "--config", str(self.folder / "config.yaml")

    def _write_config(self) -> None:
        host = f"tcp://{self._addresses['smf']}"
        account = {"username": "admin", "password": "admin"}
        semp = {"semp": {"url": f"http://{self._addresses['semp']}", **account}} if self.is_administered else {}
        status = {"status": f"127.0.0.1:{self.status_ports[0]}"} if self.status_ports else {}
        settings = {
            "connection": {"transport": "solace", "host": host, "vpn": "default", "username": "demo"},
            **semp,
            "group": {**asdict(self.shape), "provision": "none" if self.is_administered else "create_missing"},
            **self.sections,
            "handlers": [self.handlers],
            "ops": {"journal": {"path": str(self.journals)}, **status},
        }
        # JSON is YAML, and quotes whatever needs it.
        (self.folder / "config.yaml").write_bytes(orjson.dumps(settings, option=orjson.OPT_INDENT_2))


def free_ports(count: int) -> list[int]:
    """Free loopback ports, from a range out of which the system does not pick ports for connections."""
    found: list[int] = []
    for port in random.sample(range(20_000, 32_000), 1_000):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        found.append(port)
        if len(found) == count:
            break
    return found


def _ready_line(log: Path, prefix: str) -> str:
    """What follows the prefix in the first whole line of the log that begins with it; empty if there is none yet."""
    for line in log.read_text().splitlines(keepends=True):
        if line.startswith(prefix) and line.endswith("\n"):
            return line.removeprefix(prefix).strip()
    return ""
