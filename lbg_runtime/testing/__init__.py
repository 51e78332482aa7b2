"""The test kit: a group in virtual time, a broker on a port, and the conformance suite of transports.

The names below are loaded on first use: the pytest plugin is in this package too, and every test run on the machine
loads it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lbg_runtime.runtime.runners.handling import HandlerFunction
    from lbg_runtime.testing.broker_on_port import BrokerOnPort
    from lbg_runtime.testing.failures import AwaitForgotten, LawsBroken, NotReached
    from lbg_runtime.testing.group import Group
    from lbg_runtime.testing.group_context import Running, running
    from lbg_runtime.testing.handled import Handled
    from lbg_runtime.testing.handler_watch import Attempt
    from lbg_runtime.testing.life import LifeState
    from lbg_runtime.testing.virtual_time import VirtualTimeLoop, VirtualTimeStall

__all__ = [
    "running",
    "Running",
    "Group",
    "HandlerFunction",
    "Handled",
    "Attempt",
    "LifeState",
    "LawsBroken",
    "AwaitForgotten",
    "NotReached",
    "VirtualTimeLoop",
    "VirtualTimeStall",
    "BrokerOnPort",
]

_HOMES = {
    "running": "group_context",
    "Running": "group_context",
    "Group": "group",
    "HandlerFunction": "handler_watch",
    "Handled": "handled",
    "Attempt": "handler_watch",
    "LifeState": "life",
    "LawsBroken": "failures",
    "AwaitForgotten": "failures",
    "NotReached": "failures",
    "VirtualTimeLoop": "virtual_time",
    "VirtualTimeStall": "virtual_time",
    "BrokerOnPort": "broker_on_port",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(f"lbg_runtime.testing.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    # For those who complete names: what was not used yet is in none of the globals.
    return sorted({*globals(), *__all__})
