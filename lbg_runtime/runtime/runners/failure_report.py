"""What is kept of the failure that ended a message's attempts: text only, as the exception would keep its frames alive,
and all that they refer to."""

import hashlib
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

from lbg_runtime.model.failure import Then

MAX_ERROR_BYTES = 500
"""How much of an error a property holds, in bytes as sent; brokers limit the size of properties."""

MAX_TEXT_LENGTH = 2_000
"""Characters of an error's text in the log; a handler may put a whole payload into it."""

_DIGEST_LENGTH = 12


class StrangeFailure(Exception):
    """Stands in for an exception that cannot be examined, and has the name of its type."""


@dataclass(frozen=True, slots=True)
class FailureReport:
    """Why a message's attempts ended, and what follows. Made once, by the dispatcher."""

    then: Then
    attempts: int
    error: str
    """Type and text, in one line. This and `stack` can be sent as properties, whatever the handler raised."""
    stack: str
    """Digest and innermost place: `3f2a91bc04de orders.py:41 on_order`."""


def plain(failure: BaseException) -> BaseException:
    """The exception itself, or a stand-in if even looking at it raises."""
    try:
        # What `isinstance`, the policy and the log read.
        _ = failure.__class__, failure.__cause__, failure.__traceback__
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException:  # noqa: BLE001 - as above
        return StrangeFailure(type(failure).__name__)
    return failure


def leaves(failure: BaseException) -> Iterator[BaseException]:
    """The exceptions in a group and in the groups within it, in order; any other exception is its only leaf.

    The group that a task group raises says nothing itself.
    """
    left = [failure]
    while left:
        each = left.pop()
        if issubclass(type(each), BaseExceptionGroup):
            # Not the attribute, which may be the user's own.
            left.extend(reversed(_members_of(each)))
        else:
            yield each if each is failure else plain(each)


def _members_of(group: BaseException) -> tuple[BaseException, ...]:
    members: tuple[BaseException, ...] = BaseExceptionGroup.exceptions.__get__(group)
    return members


def report_of(failure: BaseException, then: Then, attempts: int) -> FailureReport:
    """The report of an exception raised by a handler, or by the dispatcher in its place."""
    return FailureReport(then, attempts, _cut(error_text(failure)), _cut(_stack_digest(failure)))


def error_text(failure: BaseException) -> str:
    """Type and text of an error, in one line of bounded length that can be sent; errors of its `str` do not escape.

    For a group, the text includes its first leaf.
    """
    leaf = next(leaves(failure))
    told = _line_of(failure)
    return escaped(told if leaf is failure else f"{told}; the first is {_line_of(leaf)}")


def _line_of(failure: BaseException) -> str:
    name = type(failure).__name__
    try:
        text = str(failure)
        kept = " ".join(text[:MAX_TEXT_LENGTH].split())
        if len(text) > MAX_TEXT_LENGTH:
            kept = f"{kept} ... ({len(text)} characters)"
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001 - code of the user, as in the handler: it must not end the runner
        kept = f"(its text cannot be made: {type(error).__name__})"
    return f"{name}: {kept}" if kept else name


def escaped(text: str) -> str:
    """The text, with Python escapes for what no property can hold: lone surrogates and zero characters."""
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\x00")


def _cut(text: str) -> str:
    return text.encode()[:MAX_ERROR_BYTES].decode(errors="ignore")


def _stack_digest(failure: BaseException) -> str:
    # Without the text, which may differ between messages, and without folders, which differ between hosts. The first
    # frame is the dispatcher's own.
    frames = traceback.extract_tb(failure.__traceback__)[1:]
    kinds = [type(failure).__qualname__]
    leaf = next(leaves(failure))
    if leaf is not failure:
        # A group is raised at the end of its task group; the leaf shows what failed, in a task of its own.
        frames += traceback.extract_tb(leaf.__traceback__)
        kinds.append(type(leaf).__qualname__)
    places = [f"{PurePath(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
    told = escaped("\n".join([*kinds, *places]))
    digest = hashlib.sha256(told.encode()).hexdigest()[:_DIGEST_LENGTH]
    return f"{digest} {escaped(places[-1])}" if places else digest
