"""A publisher that leaves messages out, sends again, loses its connection and comes back: what it takes for confirmed
is on the queue once and in order, and what it takes for refused is not there."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lbg_runtime.broker.server.session import Session
from lbg_runtime.model.ids import QueueName
from lbg_runtime.smf.assured_items import AssuredKind, ItemKind
from lbg_runtime.smf.frame import Frame
from lbg_runtime.smf.message import Relay
from lbg_runtime.smf.response import OK, response_of
from tests.broker.server.desk import Desk, answers, control, item, kind_of, published, text, text_item, u64

WINDOW = 8
LARGEST_BYTES = 100


class PublisherLaws(RuleBasedStateMachine):
    """The client is the vendor's, as it was seen: it numbers messages on a flow, says in each which one it sent before,
    has at most a window of them without an answer, and takes an answer for all up to its id."""

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk()
        self.desk.create_queue("q", "t", max_message_bytes=LARGEST_BYTES)
        self.name = ""
        self.last_id = 0
        self.last_heard_id = 0
        self.waiting: dict[int, bytes] = {}
        """What has no answer yet."""
        self.confirmed: list[int] = []
        self.refused: set[int] = set()
        self.connect()

    def connect(self) -> None:
        self.unread: list[Frame] = []
        self.session: Session = self.desk.log_in("publisher")
        heard = (ItemKind.LAST_ACKED, u64(self.last_heard_id))
        self.session.receive(control(AssuredKind.OPEN_FLOW, (ItemKind.FLOW_NAME, text(self.name)), heard))
        (opened,) = answers(self.session)
        self.flow, self.name = item(opened, ItemKind.FLOW_ID), text_item(opened, ItemKind.FLOW_NAME)
        self.hear(item(opened, ItemKind.LAST_ACKED), is_refused=False)

    def hear(self, last_id: int, *, is_refused: bool) -> None:
        for message_id in [each for each in self.waiting if each <= last_id]:
            del self.waiting[message_id]
            if is_refused and message_id == last_id:
                self.refused.add(message_id)
            else:
                self.confirmed.append(message_id)
        self.last_heard_id = max(self.last_heard_id, last_id)

    def send(self, message_ids: list[int], *, resent: bool) -> None:
        frames = (published(self.flow, each, "t", self.waiting[each], resent=resent) for each in message_ids)
        self.session.receive(b"".join(frames))

    @precondition(lambda self: len(self.waiting) < WINDOW)
    @rule(is_written=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=WINDOW))
    def publish(self, is_written: list[tuple[bool, bool]]) -> None:
        """Each of some messages is written, or left out as the socket takes no more; and is too large, or not."""
        written: list[int] = []
        for is_sent, is_large in is_written[: WINDOW - len(self.waiting)]:
            self.last_id += 1
            self.waiting[self.last_id] = b"%d" % self.last_id + bytes(2 * LARGEST_BYTES * is_large)
            if is_sent:
                written.append(self.last_id)
        self.send(written, resent=False)

    @rule(count=st.integers(1, WINDOW))
    def send_again(self, count: int) -> None:
        self.send(list(self.waiting)[:count], resent=True)

    @rule()
    def lose_the_connection(self) -> None:
        """And with it the answers that were not read."""
        self.connect()
        self.send(list(self.waiting), resent=True)

    @rule(count=st.none() | st.integers(1, WINDOW))
    def listen(self, count: int | None) -> None:
        """To all answers, or to the first ones."""
        self.unread += answers(self.session)
        read, self.unread = self.unread[:count], [] if count is None else self.unread[count:]
        for answer in read:
            if kind_of(answer) == AssuredKind.CLIENT_ACK:
                self.hear(item(answer, ItemKind.LAST_ACKED), is_refused=response_of(answer) != OK)

    @invariant()
    def the_queue_has_what_was_confirmed_once_and_in_order(self) -> None:
        kept = []
        for each in self.desk.engine.administration.queue_messages("default", QueueName("q")):
            assert isinstance(each.message.content, Relay)
            kept.append(int(each.message.content.body))
        assert kept == sorted(set(kept))
        assert set(self.confirmed) <= set(kept)
        assert not self.refused & set(kept)

    def teardown(self) -> None:
        """In the end it listens to everything, and sends until nothing is without an answer."""
        for _ in range(WINDOW + 2):
            self.listen(None)
            self.send(list(self.waiting), resent=True)
        self.listen(None)
        assert not self.waiting
        self.the_queue_has_what_was_confirmed_once_and_in_order()


TestPublisherLaws = PublisherLaws.TestCase
