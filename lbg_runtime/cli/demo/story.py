"""The story: two members of four, load, two more, a SIGKILL, a restart, a SIGTERM; every wait is for a fact.

Facts come from the members' journals, never from a guess about time: a step ends when the journals show what it was
to bring, and fails with a `StoryStuck` that names the step when they do not in time.
"""

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import orjson

from lbg_runtime.cli.demo.board import Board
from lbg_runtime.cli.demo.processes import Child, lbg_process
from lbg_runtime.cli.demo.tail import JournalTail
from lbg_runtime.model.errors import LbgError
from lbg_runtime.model.group import GroupShape

MEMBER_COUNT = 4
"""Planned members; queue q's primary is the member with index q modulo this."""

_POLL_S = 0.1
_STEP_TIMEOUT_S = 40.0
_SCENE_S = 2.0
"""How long the load runs undisturbed between two events, so that a reader can see the picture settle."""


class StoryStuck(LbgError):
    """A step of the story did not come to its end in time."""

    def __init__(self, step: str, timeout_s: float) -> None:
        super().__init__(f"the demo waited {timeout_s:.0f} s for: {step}")
        self.step = step


def member_name(index: int) -> str:
    """The id of the member with this index."""
    return f"member-{index}"


@dataclass(slots=True)
class Story:
    """Plays once, in an empty folder of its own. `on_change` is called after every look at the journals."""

    folder: Path
    shape: GroupShape
    rate_per_s: int
    key_count: int
    rebind: Mapping[str, str]
    """The section of the settings; with mode cycle members are counted, else they find each other."""
    on_change: Callable[[], None]
    board: Board = field(default_factory=Board)
    headline: str = ""
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _children: dict[str, Child] = field(default_factory=dict)
    """Processes that are meant to be running now."""
    _tail: JournalTail = field(init=False)

    def __post_init__(self) -> None:
        self._tail = JournalTail(self.journals)

    @property
    def journals(self) -> Path:
        """Folder of the journals and the ledger."""
        return self.folder / "journals"

    async def play(self) -> None:
        """Run every process and every scene; raises `StoryStuck` or `ProcessEnded` when it cannot go on."""
        self.journals.mkdir(parents=True)
        async with self._stack:
            await self._open_broker()
            await self._two_members()
            await self._load()
            await self._scale_out()
            await self._crash()
            await self._scale_in()
            await self._finish()

    async def _open_broker(self) -> None:
        self._scene("start the development broker")
        broker = await self._start("broker", "broker", "--smf", "127.0.0.1:0")
        await self._until("the broker is ready", lambda: _ready_address(broker.log) is not None)
        self._write_config(_ready_address(broker.log) or "")

    async def _two_members(self) -> None:
        self._scene(f"start 2 of {MEMBER_COUNT} planned members")
        for index in (0, 1):
            await self._start_member(index)
        await self._until(
            "every queue is fed to a member", lambda: len(self.board.owned_queues()) == self.shape.queue_count
        )

    async def _load(self) -> None:
        self._scene(f"publish {self.rate_per_s} messages a second over {self.key_count} keys, all the time")
        await self._start(
            "publisher", "publish", *self._config_option, "--topic", "orders/event", "--ledger", str(self.journals),
            "--rate", str(self.rate_per_s), "--keys", str(self.key_count),
        )  # fmt: skip
        await self._until("messages are handled", lambda: bool(self.board.distinct))
        await self._play_on(_SCENE_S)

    async def _scale_out(self) -> None:
        self._scene("add members 3 and 4: each gets its primary queues back from the secondaries that hold them")
        for index in (2, 3):
            await self._start_member(index)
        await self._until("every queue is with its primary", self._everyone_at_home)
        await self._play_on(_SCENE_S)

    async def _crash(self) -> None:
        victim = member_name(2)
        self._scene(f"SIGKILL {victim}: standbys take over")
        orphans = self.board.active_queues(victim)
        await self._children.pop(victim).kill()
        self._look()
        self.board.member_gone(victim)
        await self._until("the dead member's queues are fed to others", lambda: orphans <= self.board.owned_queues())
        await self._play_on(_SCENE_S)
        self._scene(f"start {victim} again")
        await self._start_member(2)
        await self._until("every queue is with its primary again", self._everyone_at_home)
        await self._play_on(_SCENE_S)

    async def _scale_in(self) -> None:
        leaver = member_name(1)
        self._scene(f"SIGTERM {leaver}: it drains, settles and leaves")
        await self._stop(leaver)
        self._look()
        self.board.member_gone(leaver)
        await self._until(
            "its queues are fed to others", lambda: len(self.board.owned_queues()) == self.shape.queue_count
        )
        await self._play_on(_SCENE_S)

    async def _finish(self) -> None:
        self._scene("stop the publisher, let the members finish what is spooled")
        await self._stop("publisher")
        published = _published(self.journals)
        await self._until("everything published is handled", lambda: len(self.board.distinct) >= published)
        self._scene("stop the members")
        for index in range(MEMBER_COUNT):
            if member_name(index) in self._children:
                await self._stop(member_name(index))
        self._look()
        await self._stop("broker")

    def _everyone_at_home(self) -> bool:
        members = [member_name(index) for index in range(MEMBER_COUNT)]
        if self._is_counted:
            return all(self.board.primaries_at_home(member) for member in members)
        least = self.shape.queue_count // MEMBER_COUNT
        return all(len(self.board.active_queues(member)) >= least for member in members)

    @property
    def _is_counted(self) -> bool:
        return self.rebind["mode"] == "cycle"

    @property
    def _config_option(self) -> tuple[str, str]:
        return "--config", str(self.folder / "config.yaml")

    async def _start_member(self, index: int) -> None:
        which = ("--member-index", str(index)) if self._is_counted else ("--member-id", member_name(index))
        await self._start(member_name(index), "run", *self._config_option, *which)

    async def _start(self, name: str, command: str, *arguments: str) -> Child:
        child = await self._stack.enter_async_context(
            lbg_process(name, [command, *arguments, "--exit-with-parent"], self.folder / f"{name}.log")
        )
        self._children[name] = child
        return child

    async def _stop(self, name: str) -> None:
        """Stop a process and insist on exit code 0."""
        await self._children.pop(name).stop()

    async def _until(self, step: str, reached: Callable[[], bool]) -> None:
        with anyio.move_on_after(_STEP_TIMEOUT_S):
            while True:
                self._look()
                if reached():
                    return
                await anyio.sleep(_POLL_S)
        raise StoryStuck(step, _STEP_TIMEOUT_S)

    async def _play_on(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            while True:
                self._look()
                await anyio.sleep(_POLL_S)

    def _look(self) -> None:
        for child in self._children.values():
            child.ensure_running()
        for record in self._tail.read():
            self.board.apply(record.member, record.incarnation, record.fields)
        self.on_change()

    def _scene(self, headline: str) -> None:
        self.headline = headline
        self.on_change()

    def _write_config(self, address: str) -> None:
        settings = {
            "connection": {"transport": "solace", "host": f"tcp://{address}", "vpn": "default", "username": "demo"},
            "group": {
                "name": self.shape.name,
                "hash_prefix": self.shape.hash_prefix,
                "hash_count": self.shape.hash_count,
                "queue_count": self.shape.queue_count,
                "provision": "create_missing",
            },
            "membership": {"mode": "static", "count": MEMBER_COUNT} if self._is_counted else {"settle": "1s"},
            "rebind": self.rebind,
            "handlers": ["lbg_runtime.cli.demo.handlers"],
            "ops": {"journal": {"path": str(self.journals)}},
        }
        # JSON is YAML, and quotes whatever needs it.
        (self.folder / "config.yaml").write_bytes(orjson.dumps(settings, option=orjson.OPT_INDENT_2))


def _ready_address(log: Path) -> str | None:
    """The address in the broker's ready line, once it is written whole."""
    for line in log.read_text().splitlines(keepends=True):
        if line.startswith("lbg broker ready: smf ") and line.endswith("\n"):
            return line.split()[4].rstrip(",")
    return None


def _published(journals: Path) -> int:
    """Messages that the finished ledgers say were confirmed."""
    count = 0
    for path in journals.glob("*.ledger.jsonl"):
        for line in path.read_bytes().splitlines():
            record = orjson.loads(line)
            if record["kind"] == "confirmed":
                count += record["last_seq"] - record["first_seq"] + 1
    return count
