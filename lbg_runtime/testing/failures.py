"""The errors that a test with a group fails with, apart from its own assertions."""

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING

from lbg_runtime.model.errors import LbgError, UserError

if TYPE_CHECKING:
    # This imports pyarrow, which a test with only a broker does not need.
    from lbg_runtime.validator.findings import Finding, Verdict, Witness

_FINDINGS_SHOWN = 3


class NotReached(LbgError):
    """What the test waited for did not happen in time; `what` says so, and `why` has a line for each reason.

    `within_s` is virtual time in a group and real time with a `BrokerOnPort`; None if waiting would not help.
    """

    def __init__(self, what: str, within_s: float | None, why: Sequence[str]) -> None:
        bound = "" if within_s is None else f" within {within_s:g} s"
        super().__init__("\n  ".join([f"{what}{bound}{':' if why else ''}", *why]))
        self.what = what
        self.within_s = within_s
        self.why: tuple[str, ...] = tuple(why)


class AwaitForgotten(LbgError):
    """What handlers were to do was not done, or not before their messages were settled; `lines` says of which.

    Members made coroutines that nobody awaited, or something around a handler did not wait for it.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\n  ".join(["an `await` was forgotten:", *lines]))
        self.lines: tuple[str, ...] = tuple(lines)


class LawsBroken(LbgError):
    """What the members did breaks laws of the runtime; `verdict.findings` has the proofs."""

    def __init__(self, verdict: "Verdict") -> None:
        super().__init__("\n  ".join(["the run breaks the laws:", *broken_laws(verdict)]))
        self.verdict = verdict


def broken_laws(verdict: "Verdict") -> list[str]:
    """A line for each broken law, and lines for its first findings."""
    lines = []
    for law, count in verdict.counts.items():
        if not count:
            continue
        findings = [finding for finding in verdict.findings if finding.law is law][:_FINDINGS_SHOWN]
        lines.append(f"{law.value}, {count} times:" if count > 1 else f"{law.value}:")
        lines += [f"  {line}" for finding in findings for line in _finding_lines(finding)]
        if count > len(findings):
            lines.append(f"  and {count - len(findings)} more")
    return lines


def _finding_lines(finding: "Finding") -> list[str]:
    return [finding.text, *(f"  {_witness_line(witness)}" for witness in finding.witnesses if witness.member)]


def _witness_line(witness: "Witness") -> str:
    what = f"{witness.key} #{witness.seq}" if witness.key is not None else f"flow of epoch {witness.epoch}"
    start, done = _seconds(witness.start_mono_ns), _seconds(witness.done_mono_ns)
    flag = ", redelivered" if witness.redelivered else ""
    return f"{what} at {witness.member}, queue {witness.queue}, from {start} to {done}{flag}"


def _seconds(moment_ns: int | None) -> str:
    return "?" if moment_ns is None else f"{moment_ns / 1e9:.3f} s"


def holds(condition: Callable[[], object]) -> bool:
    """Whether a condition is met; raises `UserError` if it would have to be awaited."""
    met = condition()
    if isinstance(met, Coroutine):
        # It would count as true, and the test would pass whatever the condition says.
        met.close()
        raise UserError("group.until", "an async condition", "a function that is not async")
    return bool(met)
