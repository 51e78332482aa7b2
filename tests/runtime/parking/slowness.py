"""What takes long around a parking queue: what lies in it is shown late, or a member settles late."""

import asyncio

from lbg_runtime.core.flow.events import MessageReceived
from lbg_runtime.runtime.flow.runner import FlowRunner
from lbg_runtime.runtime.parking.stay import ParkingStay


class Delay:
    """After which what lies in parking queues is shown to their owners; may be changed."""

    def __init__(self, delay_s):
        self.delay_s = delay_s


def slow_down(monkeypatch, delay_s):
    """What lies in parking queues is shown to owners that begin from now on so much later."""
    take, due_s, delay = ParkingStay._take_event, {}, Delay(delay_s)

    def take_later(stay, event):
        if isinstance(event, MessageReceived):
            loop = asyncio.get_running_loop()
            # No two at the same time, as nobody says in which order a loop takes those.
            due_s[stay] = max(due_s.get(stay, 0) + 0.001, loop.time() + delay.delay_s)
            loop.call_at(due_s[stay], take, stay, event)
        else:
            take(stay, event)

    monkeypatch.setattr(ParkingStay, "_take_event", take_later)
    return delay


def settle_late(monkeypatch, delay_s):
    """As when there is much to settle before a message that is to be parked."""
    flush = FlowRunner.flush

    def flush_late(runner):
        flushed, loop = flush(runner), asyncio.get_running_loop()
        late = loop.create_future()
        loop.call_later(delay_s, lambda: late.done() or late.set_result(flushed.result()))
        return late

    monkeypatch.setattr(FlowRunner, "flush", flush_late)
