"""A member's answers to questions: how the group stands, and where a key is."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import structlog

from lbg_runtime.core.group.control_messages import (
    MAX_TEXT_LENGTH,
    ControlMessage,
    FlowReport,
    GroupAnswer,
    GroupQuestion,
    Inquiry,
    KeyAnswer,
    KeyDetail,
    KeyQuestion,
    MemberFacts,
    ParkingWaits,
    QueueStopped,
    SeenMember,
    StoppedQueues,
)
from lbg_runtime.core.group.membership import MembershipMachine
from lbg_runtime.core.group.question_gate import QuestionGate
from lbg_runtime.model.errors import UserError
from lbg_runtime.model.ids import QueueName
from lbg_runtime.model.printable import printable
from lbg_runtime.model.version import VERSION
from lbg_runtime.runtime.clock import now_ms
from lbg_runtime.runtime.dispatch.dispatcher import Dispatcher
from lbg_runtime.runtime.dispatch.key_book import KeyBook

_log = structlog.get_logger(__name__)

_REASONS_CHARS = 48 * 1024
"""The most characters of all reasons in one message: with more, beside the names of a thousand queues, it would be too
large to be sent."""


class Answerer:
    """One per control plane, which calls it on the loop. No question reaches a machine: asking moves nothing."""

    def __init__(
        self,
        membership: MembershipMachine,
        flow_reports: Callable[[], Mapping[QueueName, FlowReport]],
        keys: KeyBook,
        dispatcher: Dispatcher,
        handled: Callable[[], Mapping[int, int]],
        say: Callable[[ControlMessage | Inquiry], None],
    ) -> None:
        """`handled`: as in `MemberFacts`."""
        self._membership = membership
        self._flow_reports = flow_reports
        self._keys = keys
        self._dispatcher = dispatcher
        self._handled = handled
        self._say = say
        self._gate = QuestionGate()

    def hear(self, message: Inquiry) -> None:
        """Answer a question, once; ignore other members' answers."""
        if not isinstance(message, GroupQuestion | KeyQuestion) or not self._membership.may_speak:
            return
        if not self._gate.admits(message.question, now_ms()):
            return
        _log.debug("question_answered", asked_by=message.header.member, question=message.question)
        if isinstance(message, GroupQuestion):
            reports = self._flow_reports()
            self._say(self._membership.heartbeat(reports))
            self._tell_waits(message)
            self._tell_stopped(message, reports)
            facts = VERSION, self._dispatcher.parked().keys, self._handled()
            self._say(MemberFacts(self._membership.stamp(), message.question, *facts))
            seen = tuple(SeenMember(one.member, one.is_suspect) for one in self._membership.view.members)
            self._say(GroupAnswer(self._membership.stamp(), message.question, seen))
        else:
            self._answer_for_key(message)

    def _answer_for_key(self, asked: KeyQuestion) -> None:
        try:
            shard, queue = self._keys.place(asked.key)
        except UserError:
            # Our hash function refuses the key, so nobody can have published it here. The observer has another hash
            # function, and gets no answer from us.
            return
        flow = self._flow_reports().get(queue)
        self._tell_waits(asked)
        sight = self._keys.sight(asked.key)
        head, outcome = sight.head, None if sight.last is None else sight.last.outcome
        if head is not None or outcome is not None:
            topic, error = (None, None) if head is None else (head.topic, head.error)
            self._say(KeyDetail(self._membership.stamp(), asked.question, topic, error, outcome))
        if flow is not None and self._dispatcher.is_stopped(queue, flow.epoch):
            self._say(QueueStopped(self._membership.stamp(), asked.question))
        self._say(KeyAnswer(self._membership.stamp(), asked.question, shard, queue, flow, sight))

    def _tell_stopped(self, asked: GroupQuestion, reports: Mapping[QueueName, FlowReport]) -> None:
        owned = ((queue, flow.epoch) for queue, flow in reports.items() if flow.is_owner)
        stopped = tuple(queue for queue, epoch in owned if self._dispatcher.is_stopped(queue, epoch))
        if stopped:
            self._say(StoppedQueues(self._membership.stamp(), asked.question, stopped))

    def _tell_waits(self, asked: GroupQuestion | KeyQuestion) -> None:
        found = self._dispatcher.parking_waits()
        if found:
            # These are the broker's words: any text.
            length = max(1, min(MAX_TEXT_LENGTH, _REASONS_CHARS // len(found)))
            waits = {queue: replace(wait, reason=printable(wait.reason)[:length]) for queue, wait in found.items()}
            self._say(ParkingWaits(self._membership.stamp(), asked.question, waits))
