"""Decides which questions from non-members a member answers: each once, and only so many per second in all."""

from collections import deque

from lbg_runtime.core.group.control_messages import QuestionId

MAX_PER_SECOND = 20
"""Questions above this rate are left unanswered: each answer costs every listener on the topic a message."""

_REMEMBERED = 1_000
"""The questions of 50 seconds at the highest rate; a repeat comes much sooner or not at all."""


class QuestionGate:
    """One per member; called from its loop."""

    def __init__(self) -> None:
        self._remembered: dict[QuestionId, None] = {}
        self._answered_ms: deque[int] = deque(maxlen=MAX_PER_SECOND)

    def admits(self, question: QuestionId, now_ms: int) -> bool:
        """Whether to answer; a question that is admitted once is not admitted again."""
        if question in self._remembered:
            return False
        if len(self._answered_ms) == MAX_PER_SECOND and now_ms - self._answered_ms[0] < 1_000:
            return False
        if len(self._remembered) >= _REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        self._remembered[question] = None
        self._answered_ms.append(now_ms)
        return True
