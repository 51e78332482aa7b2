"""What is kept of the failure that ended a message's attempts: facts, as the exception would hold its frames."""

import hashlib
import traceback
from dataclasses import dataclass
from pathlib import PurePath

from lbg_runtime.model.failure import Then

MAX_ERROR_LENGTH = 500
"""Characters of an error's text in a property; brokers limit what properties may take."""

_DIGEST_LENGTH = 12


@dataclass(frozen=True, slots=True)
class FailureReport:
    """Made once, when the attempts end."""

    then: Then
    attempts: int
    error: str
    """Type and text, in one line."""
    stack: str
    """Digest, and the innermost place: `3f2a91bc04de orders.py:41 on_order`."""


def report_of(failure: BaseException, then: Then, attempts: int) -> FailureReport:
    """The report of an exception that a handler, or the dispatcher for it, has raised."""
    return FailureReport(then, attempts, error_text(failure)[:MAX_ERROR_LENGTH], _stack_digest(failure))


def error_text(failure: BaseException) -> str:
    """Type and text of an error, in one line."""
    text = " ".join(str(failure).split())
    return f"{type(failure).__name__}: {text}" if text else type(failure).__name__


def _stack_digest(failure: BaseException) -> str:
    # Without the text, which may differ from message to message, and without folders, which differ from host to host.
    # The first frame is the dispatcher's own.
    frames = traceback.extract_tb(failure.__traceback__)[1:]
    places = [f"{PurePath(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
    digest = hashlib.sha256("\n".join([type(failure).__qualname__, *places]).encode()).hexdigest()[:_DIGEST_LENGTH]
    return f"{digest} {places[-1]}" if places else digest
