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
        self.key_of: Callable[[Published], str | None] = lambda _: None
        """The partition key of a message, the user property `JMSXGroupID`; None if it has none. Must not raise."""
        self.closes_group: Callable[[Published], bool] = lambda _: False
        """Whether a message is the last of its group for now: its user property `JMSXGroupSeq` is -1."""
        self.traits_of: Callable[[Published], Traits] = lambda _: Traits()
        """The traits that a message declares. Must not raise."""
        self.fields_of: Callable[[Published], Fields] = lambda _: {}
        """The fields that selectors look at. Must not raise."""
        self.wall_s: Callable[[], float] = lambda: 0.0
        """Unix time."""
        self.refuse: Callable[[Asked, str], None] | None = None
        """Raises `BrokerRefusal` if a client of this name is to be refused what it asks for; None for no refusals."""
        self.choose: Callable[[int], int] = lambda _: 0
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
