"""What an engine needs from the front end that carries its effects out: time, chance, and the contents of messages."""

from collections.abc import Callable
from enum import Enum

from lbg_runtime.broker.engine.effects import Published
from lbg_runtime.broker.engine.timetable import Timetable
from lbg_runtime.broker.engine.traits import Fields, Traits


class Asked(Enum):
    """The requests that a fault switch can refuse a client."""

    LOGIN = "login"
    BIND = "bind"
    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"


class Surroundings:
    """One per engine. Before the first client comes, a front end replaces whatever it can provide better."""

    def __init__(self) -> None:
        self.timetable = Timetable()
        self.key_of: Callable[[Published], str | None] = _no_key
        """The partition key of a message, the user property `JMSXGroupID`; None if it has none. Must not raise."""
        self.closes_group: Callable[[Published], bool] = _never
        """Whether a message is the last of its group for now: its user property `JMSXGroupSeq` is -1."""
        self.traits_of: Callable[[Published], Traits] = _default_traits
        """The traits that a message declares. Must not raise."""
        self.fields_of: Callable[[Published], Fields] = _no_fields
        """The fields that selectors look at. Must not raise."""
        self.wall_s: Callable[[], float] = _no_time
        """Unix time."""
        self.refuse: Callable[[Asked, str], None] | None = None
        """Raises `BrokerRefusal` if a client of this name is to be refused what it asks for; None for no refusals."""
        self.choose: Callable[[int], int] = _first
        """A random number below the one given."""

    def check(self, asked: Asked, client_name: str) -> None:
        """Raise `BrokerRefusal` if this is to be refused."""
        if self.refuse is not None:
            self.refuse(asked, client_name)

    def age_ms(self, message: Published) -> int:
        """How long ago a message came; 0 if that is not known."""
        if message.spooled_at_s is None:
            return 0
        return max(0, round((self.wall_s() - message.spooled_at_s) * 1_000))


def _default_traits(_: Published) -> Traits:
    return Traits()


def _no_fields(_: Published) -> Fields:
    return {}


def _no_time() -> float:
    return 0.0


def _no_key(_: Published) -> str | None:
    return None


def _never(_: Published) -> bool:
    return False


def _first(_: int) -> int:
    return 0
