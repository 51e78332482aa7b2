"""Settings as a store writes them: every one comes back as it was, by itself and from the file of a broker."""

from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from lbg_runtime.broker.engine.changes import Changes
from lbg_runtime.broker.engine.engine import Engine
from lbg_runtime.broker.engine.settings import Grouping, QueueSettings, ReplayLogSettings
from lbg_runtime.broker.store.encoding import (
    decode_log_settings,
    decode_settings,
    encode_log_settings,
    encode_settings,
)
from lbg_runtime.broker.store.store import Store
from lbg_runtime.model.ids import QueueName

NUMBERS = st.integers(0, 2**63 - 1)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(), lambda one: st.dictionaries(st.text(), one), max_leaves=3
)
# Strategies that do not follow from the type; every other field has one by its type, also one that is new.
GIVEN = {int: NUMBERS, int | None: st.none() | NUMBERS}


def any_of(kind: type, **known: st.SearchStrategy) -> st.SearchStrategy:
    """Values of a dataclass, each of its fields with anything that its type allows."""
    return st.builds(kind, **{each.name: known.get(each.name, GIVEN.get(each.type, ...)) for each in fields(kind)})


QUEUES = any_of(
    QueueSettings,
    # A queue makes its partitions at once.
    partition_count=st.integers(0, 100),
    grouping=any_of(Grouping),
    remarks=st.dictionaries(st.text(), JSON, max_size=3),
)


@settings(max_examples=40, deadline=None)
@given(said=QUEUES)
def test_the_settings_of_a_queue_come_back_whatever_they_are(said: QueueSettings) -> None:
    # Their types as well: 0 is not False.
    assert repr(decode_settings(encode_settings(said))) == repr(said)


@given(said=any_of(ReplayLogSettings))
def test_the_settings_of_a_replay_log_come_back_whatever_they_are(said: ReplayLogSettings) -> None:
    assert repr(decode_log_settings(encode_log_settings(said))) == repr(said)


@settings(max_examples=25, deadline=None)
@given(created=QUEUES, changed=QUEUES, log=any_of(ReplayLogSettings))
def test_a_broker_that_comes_back_has_the_settings_that_it_had(
    created: QueueSettings, changed: QueueSettings, log: ReplayLogSettings
) -> None:
    with TemporaryDirectory() as place:
        before = Kept(Path(place) / "store")
        for name in ("left", "changed"):
            before.engine.create_queue("default", QueueName(name), created)
        before.engine.administration.change_queue("default", QueueName("changed"), changed)
        before.engine.replays.keep_log("default", log)
        seen = before.seen()
        before.end()
        after = Kept(Path(place) / "store")
        assert after.seen() == seen
        after.end()


class Kept:
    """An engine and its store."""

    def __init__(self, path: Path) -> None:
        self.store = Store.open(path)
        self.changes = Changes()
        self.engine = Engine(self.store.instance, self.changes, self.store.spooler)
        self.engine.restore(self.store.read())

    def seen(self) -> list[str]:
        queues = [self.engine.queue_status("default", name) for name in self.engine.queue_names("default")]
        log = self.engine.replays.log("default")
        return [repr(log and log.settings), *(f"{queue.name} {queue.settings!r}" for queue in queues)]

    def end(self) -> None:
        self.store.write(self.changes.take())
        self.store.close()
