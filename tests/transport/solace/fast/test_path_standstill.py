"""However network thread and loop meet: a loop that stands still from then on has the window closed before much has
gathered, and once it moves again, all has come in order and the window is open.

Both parts of the fast path that receive, and the inbox, are the real ones; the client is one that only opens and closes
its window.
"""

import select
from collections.abc import Callable, Iterator
from ctypes import CFUNCTYPE, c_int, c_void_p
from types import SimpleNamespace
from typing import Any

import pytest

from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.model.message import Delivery, Message
from lbg_runtime.transport.solace import inbox
from lbg_runtime.transport.solace.fast import compiled, gathering, path
from lbg_runtime.transport.solace.fast.calls import address_of
from lbg_runtime.transport.solace.fast.gathering import Gathering
from lbg_runtime.transport.solace.fast.path import FastPath
from lbg_runtime.transport.solace.receive_path import TAKEN

FULL = 2
STORY = ("message", "message", "event", "message", "message")
"""What comes while both move."""
MOST_TURNS = 4
"""How often one goes on while the other is in the middle of a step, or the loop makes a step between two of these."""


@CFUNCTYPE(c_int, c_void_p)
def free(_: int) -> int:
    return 0


class Choices:
    """Answers no, but for at most so many yes; each way in which these can fall comes once."""

    def __init__(self, most_yes: int) -> None:
        self._most_yes = most_yes
        self._answers: list[bool] = []
        self._asked = 0

    def is_now(self) -> bool:
        if self._asked == len(self._answers):
            self._answers.append(False)
        self._asked += 1
        return self._answers[self._asked - 1]

    def all(self) -> Iterator[None]:
        while True:
            self._asked = 0
            yield
            # The last no that may be a yes becomes one; what follows it is asked anew.
            while self._answers and (self._answers[-1] or sum(self._answers) == self._most_yes):
                self._answers.pop()
            if not self._answers:
                return
            self._answers[-1] = True


class Loop:
    """In place of the event loop: a step is one callback that is ready."""

    def __init__(self) -> None:
        self._ready: list[Callable[[], None]] = []
        self._reader: tuple[int, Callable[[], None]] | None = None

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._ready.append(callback)

    call_soon_threadsafe = call_soon

    def add_reader(self, file: int, callback: Callable[[], None]) -> None:
        self._reader = file, callback

    def remove_reader(self, _: int) -> None:
        self._reader = None

    def is_closed(self) -> bool:
        return False

    def step(self) -> bool:
        """Returns whether anything was ready."""
        if self._ready:
            self._ready.pop(0)()
        elif self._reader is not None and select.select([self._reader[0]], [], [], 0)[0]:
            self._reader[1]()
        else:
            return False
        return True


class MetInbox(inbox.Inbox):
    """The other thread may go on before and behind each post, and before each item is taken."""

    def __init__(self, loop: Any, meet: Callable[[], None]) -> None:
        super().__init__(loop)
        self._meet = meet

    def post(self, take: Callable[[Any], None], item: Any, drop: Callable[[Any], None] | None = None) -> bool:
        def take_then(item: Any) -> None:
            self._meet()
            take(item)

        self._meet()
        has_room = super().post(take_then, item, drop)
        self._meet()
        return has_room


class Rig:
    """Both threads, the client and the flow. Whichever thread is in the middle of a step, the other one may go on."""

    queue, epoch = QueueName("q"), Epoch(1)

    def __init__(self, choices: Choices, loop: Loop, *, is_compiled: bool) -> None:
        self._choices = choices
        self._loop = loop
        self._story = list(STORY)
        self._moving: set[str] = set()
        self.came = 0
        self.is_open = False
        self.taken: list[int] = []
        self.reasons: list[str] = []
        self.inbox = MetInbox(loop, self.meet)
        gathers = None
        if is_compiled:
            assert compiled.INTAKE is not None
            gathers = Gathering(compiled.INTAKE, self.inbox, address_of(free), 0.0)
        self._path = FastPath(self, self._read, self.inbox, self, gathers)  # type: ignore[arg-type]
        self._receiver = SimpleNamespace(flow_p=None)
        self._path.attach(self._receiver)
        in_python = self._receiver._flow_msg_callback_func_routine
        self._callback = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p)(compiled.CALLBACK) if is_compiled else in_python
        loop.call_soon(lambda: self._path.set_intake(is_open=True))

    # -- the flow

    def _read(self, pointer: int, queue: QueueName, epoch: Epoch) -> Delivery:
        return Delivery(queue, epoch, DeliveryId(pointer), Message("t", b""), False, 0)

    def arrived(self, delivery: Delivery) -> None:
        self.taken.append(delivery.delivery_id)

    def give_up(self, reason: str) -> None:
        self.reasons.append(reason)

    # -- the client

    def accept_of(self, _: Any) -> Any:
        return None

    def pin(self) -> int:
        return 0

    def start(self, _: Any) -> None:
        self._set_window(is_open=True)

    def stop(self, _: Any) -> None:
        self._set_window(is_open=False)

    def _set_window(self, *, is_open: bool) -> None:
        self.meet()
        self.is_open = is_open
        self.meet()

    # -- the threads

    def meet(self) -> None:
        if "loop" not in self._moving:
            while self._choices.is_now() and self._move_loop():
                pass
        elif "network" not in self._moving:
            while self._story and self._choices.is_now():
                self._move_network()

    def _move_loop(self) -> bool:
        self._moving.add("loop")
        has_moved = self._loop.step()
        self._moving.remove("loop")
        return has_moved

    def _move_network(self) -> None:
        self._moving.add("network")
        self._bring(self._story.pop(0))
        self._moving.remove("network")

    def _bring(self, act: str) -> None:
        self.came += 1
        if act == "message":
            assert self._callback(None, self.came, id(self._receiver)) == TAKEN
        else:
            self._path.seal()
            self.inbox.post(self.taken.append, self.came)
            self._path.seal()

    def move(self) -> None:
        while self._story:
            self._move_network()
            self.meet()

    def stand_still(self) -> None:
        """The loop makes no step, and as many messages come as make it full."""
        self._moving = {"loop", "network"}
        for _ in range(FULL):
            self._bring("message")

    def go_on(self) -> None:
        while self._loop.step():
            pass


@pytest.mark.parametrize("is_compiled", [True, False], ids=["compiled", "interpreted"])
def test_a_loop_that_stands_still_has_the_window_closed(monkeypatch: pytest.MonkeyPatch, is_compiled: bool) -> None:
    if is_compiled and compiled.INTAKE is None:
        pytest.skip("the package was built without a compiler")
    monkeypatch.setattr(gathering, "FULL", FULL)
    monkeypatch.setattr(inbox, "FULL", FULL)
    monkeypatch.setattr(path, "PATIENCE_S", 0.0)
    choices = Choices(MOST_TURNS)
    for _ in choices.all():
        loop = Loop()
        with monkeypatch.context() as here:
            here.setattr("asyncio.get_running_loop", lambda loop=loop: loop)
            rig = Rig(choices, loop, is_compiled=is_compiled)
        rig.move()
        rig.stand_still()
        was_open = rig.is_open
        rig.go_on()
        rig.inbox.close()
        assert (was_open, rig.is_open, rig.reasons) == (False, True, [])
        assert rig.taken == list(range(1, rig.came + 1))
