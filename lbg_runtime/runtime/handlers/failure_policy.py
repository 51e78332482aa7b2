"""Decides when the attempts of a message end, and what follows: by the settings and a handler's own arguments."""

import asyncio
import builtins
import importlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, TypedDict

from pydantic import ValidationError

from lbg_runtime.config.fields import SettingProblem
from lbg_runtime.config.load import expected_by
from lbg_runtime.config.settings import BackoffSettings, FailureSettings
from lbg_runtime.core.chance import RandomSource, doubled_ms
from lbg_runtime.model.errors import BatchCutShort, ConfigError, HandlerError, TerminalFailure
from lbg_runtime.model.failure import Then
from lbg_runtime.runtime.runners.failure_report import leaves

ExceptionTypes = tuple[type[BaseException], ...]

_NEVER_TERMINAL_UNSAID = (TimeoutError, asyncio.CancelledError, BatchCutShort)
"""Failures that say more about the moment than about the message; terminal only if they are listed."""


class FailureArguments(TypedDict, total=False):
    """Arguments of a decorator, as in the section `failure` of the settings."""

    attempts: int | Literal["unlimited"]
    """How many there are at most."""
    timeout: str
    """The longest time of one attempt: `30s`."""
    backoff: tuple[str, str]
    """First and longest wait before the next attempt: `("100ms", "30s")`."""
    retriable: Iterable[type[Exception]]
    """If any are given, all other errors are terminal."""
    terminal: Iterable[type[Exception]]
    """These end the attempts at once."""
    then: Literal["error_queue", "dmq", "park", "stop"]
    """What follows the last attempt."""


@dataclass(frozen=True, slots=True)
class FailureOptions:
    """What a handler's decorator says about failures; the settings say the rest."""

    given: FailureSettings = field(default_factory=FailureSettings)
    """Only the fields that are set count."""
    retriable: ExceptionTypes = ()
    terminal: ExceptionTypes = ()


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """What the dispatcher asks after a failed attempt. Immutable; shared by all handlers without arguments of their
    own."""

    attempts: int | None
    """None: unlimited."""
    timeout_ms: int
    backoff: BackoffSettings
    retriable: ExceptionTypes
    terminal: ExceptionTypes
    then: Then | None
    """What follows the last attempt. None only if `attempts` is None too: then not even a terminal failure ends
    them."""
    has_receipt: bool
    """Whether the handler settles by a receipt: it may have returned long before an attempt is overdue."""

    def end_after(self, attempts: int, failure: BaseException) -> Then | None:
        """What follows the failed attempt with this number, from 1; None for another attempt."""
        if self.then is None:
            return None
        is_last = self.attempts is not None and attempts >= self.attempts
        return self.then if is_last or self.is_terminal(failure) else None

    def overdue(self) -> TimeoutError:
        """The failure of an attempt that took too long."""
        late = "its receipt was not settled" if self.has_receipt else "the handler did not finish"
        return TimeoutError(f"{late} within {self.timeout_ms / 1_000:g} s")

    def delay_ms(self, attempts: int, failure: BaseException, random: RandomSource) -> int:
        """The wait before the attempt after this one."""
        if self.is_terminal(failure):
            # Nothing ends the attempts, so make them as rare as possible.
            return self.backoff.maximum_ms
        return doubled_ms(self.backoff.initial_ms, self.backoff.maximum_ms, attempts, random)

    def move_delay_ms(self, tries: int, random: RandomSource) -> int:
        """The wait after this many failed tries (from 1) to move a message."""
        return doubled_ms(self.backoff.initial_ms, self.backoff.maximum_ms, tries, random)

    def is_terminal(self, failure: BaseException) -> bool:
        """Whether no further attempt can help. Of the listed types, the first in the failure's MRO decides.

        A group of exceptions, such as a task group raises, is terminal if one of its leaves is; but if a type of groups
        is listed, that decides.
        """
        is_group = issubclass(type(failure), BaseExceptionGroup)
        for kind in type(failure).__mro__:
            if is_group and kind is Exception:
                # A listed type that every exception has decides about the leaves, not the group.
                break
            if kind in self.terminal:
                return True
            if kind in self.retriable:
                return False
            if kind is TerminalFailure:
                return True
        if is_group:
            return any(map(self.is_terminal, leaves(failure)))
        return bool(self.retriable) and not isinstance(failure, _NEVER_TERMINAL_UNSAID)


def make_policy(
    failure: FailureSettings, options: FailureOptions, where: str, *, has_receipt: bool = False
) -> FailurePolicy:
    """The policy of the handler at `where`. Raises `ConfigError` or `HandlerError` for an impossible one."""
    given = options.given
    joined = failure.model_copy(update={name: getattr(given, name) for name in given.model_fields_set})
    if joined.attempts is not None and joined.then is None:
        expected = f"{' or '.join(each.value for each in Then)}, as attempts end after {joined.attempts}"
        if "attempts" in given.model_fields_set:
            raise HandlerError(where, "no `then`, nor failure.then in the settings", expected)
        raise ConfigError("failure.then", "not set", expected)
    # Either both lists of the settings or none: a mixture would say something that nobody wrote.
    retriable, terminal = options.retriable, options.terminal
    if not retriable and not terminal:
        retriable = tuple(_exception(name, "failure.retriable") for name in failure.retriable)
        terminal = tuple(_exception(name, "failure.terminal") for name in failure.terminal)
    both = [kind.__qualname__ for kind in retriable if kind in terminal]
    if both:
        raise HandlerError(where, f"{both[0]} is retriable and terminal", "one of the two")
    return FailurePolicy(
        joined.attempts, joined.timeout_ms, joined.backoff, retriable, terminal, joined.then, has_receipt
    )


def read_arguments(said: FailureArguments, where: str, beside: tuple[str, ...]) -> FailureOptions:
    """Parse a decorator's arguments, which are written as in the settings. Raises `HandlerError`.

    `beside` names what else the decorator takes, for the error about a mistyped name.
    """
    values: dict[str, object] = {**said}
    retriable = _types(values.pop("retriable", ()), "retriable", where)
    terminal = _types(values.pop("terminal", ()), "terminal", where)
    unknown = values.keys() - FailureArguments.__annotations__.keys()
    if unknown:
        known = ", ".join((*beside, *FailureArguments.__annotations__))
        raise HandlerError(where, f"argument {min(unknown)}", f"one of {known}")
    if "backoff" in values:
        backoff = values["backoff"]
        if not isinstance(backoff, tuple) or len(backoff) != 2:
            raise HandlerError(where, f"backoff {backoff!r}", 'first and longest wait, as in ("100ms", "30s")')
        values["backoff"] = {"initial": backoff[0], "maximum": backoff[1]}
    try:
        given = FailureSettings.model_validate(values)
    except ValidationError as error:
        details = error.errors(include_url=False)[0]
        cause = details.get("ctx", {}).get("error")
        path: tuple[str | int, ...] = details["loc"]
        found, expected = repr(details["input"]), expected_by(details)
        if isinstance(cause, SettingProblem):
            path, found, expected = (*path, *cause.path), cause.found, cause.expected
        raise HandlerError(where, f"{'.'.join(map(str, path))} {found}", expected) from None
    return FailureOptions(given, retriable, terminal)


def _types(listed: object, name: str, where: str) -> ExceptionTypes:
    if not isinstance(listed, Iterable):
        raise HandlerError(where, f"{name} {listed!r}", "types of exceptions, in a tuple")
    kinds = tuple(listed)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise HandlerError(where, f"{name} {kind!r}", "types of exceptions")
    return kinds


def _exception(name: str, where: str) -> type[BaseException]:
    module_name, _, class_name = name.rpartition(".")
    expected = "an exception, as module.Name or, where it is built in, Name"
    try:
        module = importlib.import_module(module_name) if module_name else builtins
        kind = getattr(module, class_name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(where, f"{name}: {error}", expected) from None
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        raise ConfigError(where, name, expected)
    return kind
