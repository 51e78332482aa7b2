"""Determines from the annotations of a handler's parameters, at registration, what each is filled with."""

import builtins
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from types import UnionType
from typing import Annotated, Any, ForwardRef, TypeGuard, TypeVar, get_args, get_origin, get_type_hints

import structlog
from structlog.typing import BindableLogger, FilteringBoundLogger

from lbg_runtime.model.errors import HandlerError
from lbg_runtime.model.message import Delivery, Headers, Message
from lbg_runtime.runtime.handlers.aliases import stands_for
from lbg_runtime.runtime.handlers.batches import CURRENT_BATCH, Batch
from lbg_runtime.runtime.handlers.bodies import Decoder, NoBody, make_decoder, type_name
from lbg_runtime.runtime.handlers.receipts import CURRENT_RECEIPT, Receipt
from lbg_runtime.runtime.handlers.resources import RESOURCES
from lbg_runtime.runtime.handlers.signatures import signature_of
from lbg_runtime.runtime.runners.handling import CURRENT_HANDLING

_T = TypeVar("_T")


class _StateMark:
    """Marks a parameter that is not a body."""


State = Annotated[_T, _StateMark]
"""Annotation of a parameter that gets a value yielded by a lifespan: `pool: State[Pool]`."""

Fill = Callable[[Message], object]
"""Returns the value of a parameter for a message. Called within the attempt, and may raise as a handler may."""

_EXPECTED = "exactly one parameter, the message, or an annotation for each"

_KNOWN = "Message, Delivery, Receipt, bytes, str, what pydantic can read, a structlog logger, or State[...]"

_OURS = (Message, Delivery, Headers, Receipt, Batch)
"""Types of ours that a parameter may have, and that are no bodies, not even as part of one. Pydantic would take the
first three, which are dataclasses, for bodies: it would refuse every payload as one of the first two, and find no
headers in whatever JSON it reads as the third."""

_LOGGERS = (FilteringBoundLogger, BindableLogger)


@dataclass(frozen=True, slots=True)
class Parameters:
    """How a function is called for a message."""

    positional: tuple[Fill, ...]
    named: tuple[tuple[str, Fill], ...]
    body: object
    """The annotation that the payload is decoded for; None if it is not decoded."""
    states: tuple[type, ...]
    """The types that lifespans must yield for it."""
    has_receipt: bool
    """Whether it settles its message itself."""
    has_batch: bool
    """Whether it takes a batch; `body` is then the annotation for each of its messages."""

    @property
    def is_plain(self) -> bool:
        """Whether it takes the message and nothing else, so that it can be called as it is."""
        return self.positional == (_message,) and not self.named

    def fill(self, message: Message) -> tuple[list[object], dict[str, object]]:
        """The arguments; raises `BodyRefused`."""
        return [fill(message) for fill in self.positional], {name: fill(message) for name, fill in self.named}


def read_parameters(function: Callable[..., object], where: str) -> Parameters:
    """How a function is called. A parameter with a default keeps it. Raises `HandlerError` for any other parameter that
    is not understood."""
    if isinstance(function, type):
        raise HandlerError(where, "a class", "a function, or an object of the class")
    try:
        signature = signature_of(function)
    except (TypeError, ValueError):
        # It cannot be called, or is built in and has no signature.
        raise HandlerError(where, "no parameters that can be read", _EXPECTED) from None
    wanted = [each for each in signature.parameters.values() if _is_filled(each)]
    annotations = {each.name: _resolved(each.annotation, function, where) for each in wanted}
    unnamed = [each for each in wanted if stands_for(annotations[each.name]) in (inspect.Parameter.empty, Any, object)]
    if unnamed and unnamed[0].name == "self":
        raise HandlerError(
            where, f"parameters {signature}", "a bound method: register that of an object, not its class's"
        )
    if not wanted or len(unnamed) > 1 or any(each.kind is each.KEYWORD_ONLY for each in unnamed):
        raise HandlerError(where, f"parameters {signature}", _EXPECTED)
    if unnamed and any(stands_for(annotation) is Message for annotation in annotations.values()):
        # Nobody wants the message twice: the parameter without an annotation was meant for something else.
        raise HandlerError(where, f"parameters {signature}", _EXPECTED)
    reader = _Reader(function, where)
    positional: list[Fill] = []
    named: list[tuple[str, Fill]] = []
    for each in wanted:
        fill = _message if each in unnamed else reader.read(each.name, annotations[each.name])
        if each.kind is each.KEYWORD_ONLY:
            named.append((each.name, fill))
        else:
            positional.append(fill)
    if reader.has_batch and len(wanted) != 1 + len(reader.states):
        raise HandlerError(where, f"parameters {signature}", "with a batch, nothing else but State[...]")
    return Parameters(
        tuple(positional),
        tuple(named),
        reader.body,
        tuple(reader.states),
        has_receipt=reader.has_receipt,
        has_batch=reader.has_batch,
    )


def read_fills(
    function: Callable[..., object], parameters: Iterable[inspect.Parameter], where: str
) -> tuple[tuple[tuple[str, Fill], ...], tuple[type, ...]]:
    """How these parameters are filled, by name, and the types that lifespans have to yield; none may be a body.

    Raises `HandlerError` for an unknown kind of parameter, or one that only handlers may have.
    """
    reader = _Reader(function, where)
    fills: list[tuple[str, Fill]] = []
    for each in parameters:
        if not _is_filled(each):
            continue
        annotation = stands_for(_resolved(each.annotation, function, where))
        is_known = annotation is Delivery or _is_logger(annotation) or _is_state(annotation)
        if not is_known or each.kind is each.POSITIONAL_ONLY:
            raise HandlerError(where, f"parameter {each}", "Delivery, a structlog logger, or State[...], by name")
        fills.append((each.name, reader.read(each.name, annotation)))
    return tuple(fills), tuple(reader.states)


class _Reader:
    """Reads the annotated parameters of one function, one after another."""

    def __init__(self, function: Callable[..., object], where: str) -> None:
        self.body: object = None
        self.states: list[type] = []
        self.has_receipt = False
        self.has_batch = False
        self._where = where
        self._logger_name = getattr(innermost(function), "__module__", None)

    def read(self, name: str, annotation: object) -> Fill:
        meant = stands_for(annotation)
        if meant is Message:
            return _message
        if meant is Delivery:
            return _delivery
        if meant is Receipt:
            self.has_receipt = True
            return _receipt
        if meant is Batch or get_origin(meant) is Batch:
            self.has_batch = True
            (inner,) = get_args(meant) or (bytes,)
            if any(map(_is_ours, _parts(inner))):
                expected = "Batch, or Batch[Order]: the items of either have message and delivery, and can be settled"
                raise HandlerError(self._where, f"parameter {name}: Batch[{type_name(inner)}]", expected)
            self._body_of(name, inner)
            return _batch
        if _is_logger(meant):
            return _logger_of(self._logger_name)
        if _is_state(meant):
            kind = _class_of(stands_for(get_args(meant)[0]))
            if not _has_instances(kind):
                found = f"parameter {name}: State[{type_name(kind)}]"
                raise HandlerError(self._where, found, "a class; a protocol only with @runtime_checkable")
            self.states.append(kind)
            return _state_of(kind)
        return self._body_of(name, annotation)

    def _body_of(self, name: str, annotation: object) -> Fill:
        if any(map(_is_ours, _parts(annotation))):
            expected = "a type that JSON can be read as; Message, Delivery, Receipt, Batch and State[...] stand alone"
            raise HandlerError(self._where, f"parameter {name}: {type_name(annotation)}", expected)
        try:
            decode = make_decoder(annotation)
        except NoBody as error:
            expected = str(error) or _KNOWN
            raise HandlerError(self._where, f"parameter {name}: {type_name(annotation)}", expected) from None
        if self.body is not None:
            found = f"two bodies, {type_name(self.body)} and {type_name(annotation)}"
            raise HandlerError(self._where, found, "one, and State[...] around what is none")
        self.body = annotation
        return _decoded_by(decode)


def innermost(function: object) -> object:
    """The function below every `partial` and every decorator that sets `__wrapped__`."""
    function = inspect.unwrap(function)  # type: ignore[arg-type]  # whatever it is
    while isinstance(function, partial):
        function = inspect.unwrap(function.func)
    return function


def _is_filled(parameter: inspect.Parameter) -> bool:
    is_variable = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return not is_variable and parameter.default is parameter.empty


def evaluated(annotation: str, function: Callable[..., object]) -> object:
    """What a text that annotates the function stands for; raises whatever its evaluation raises, as perhaps only type
    checkers know its names."""
    # As `inspect` does, but that does it for a whole signature, and fails if a single name is missing.
    return eval(annotation, _names_of(function))  # noqa: S307 - the user's own annotation, in the user's own module


def _names_of(function: Callable[..., object]) -> dict[str, Any]:
    """The names of the function's module."""
    target = innermost(function)
    module = sys.modules.get(getattr(target, "__module__", ""))
    names: dict[str, Any] = getattr(target, "__globals__", None) or vars(module or builtins)
    return names


def _resolved(annotation: object, function: Callable[..., object], where: str) -> object:
    if not isinstance(annotation, str):
        return _completed(annotation, function)
    try:
        return _completed(evaluated(annotation, function), function)
    except Exception as error:  # noqa: BLE001 - it is the user's, and may raise anything
        if annotation.rpartition(".")[2] == Message.__name__:
            return Message
        raise HandlerError(
            where, f"annotation {annotation!r}: {type(error).__name__}: {error}", "a name that is imported at run time"
        ) from None


def _completed(annotation: object, function: Callable[..., object]) -> object:
    """The annotation with what is a text in its brackets, as in `list["Order"]`, if all of its names are there already;
    otherwise pydantic looks for them later."""
    if not any(isinstance(each, str | ForwardRef) for each in _parts(annotation)):
        return annotation

    def bearer() -> None: ...

    bearer.__annotations__ = {"it": annotation}
    try:
        return get_type_hints(bearer, _names_of(function), include_extras=True)["it"]
    except Exception:  # noqa: BLE001 - as above
        return annotation


def _parts(annotation: object, names: tuple[object, ...] = ()) -> Iterator[object]:
    """The annotation and what is in its brackets, at every level. `names` are those that it is part of: a name may be
    part of what it stands for."""
    found = stands_for(annotation)
    yield found
    if annotation in names:
        return
    if found is not annotation:
        names = (*names, annotation)
    for each in found if isinstance(found, list) else get_args(found):
        yield from _parts(each, names)


def _is_ours(annotation: object) -> bool:
    """Whether it is an annotation of nothing that a payload holds: one of our types, or a function."""
    kind = get_origin(annotation) or annotation
    if kind is Callable or _is_state(annotation):
        return True
    return isinstance(kind, type) and issubclass(kind, _OURS)


def _class_of(annotation: object) -> object:
    """The class of which it is, if it has brackets: of `Totals[int]`, the objects are those of `Totals`."""
    origin = get_origin(annotation)
    # A union is no class, although Python has one for it.
    return origin if isinstance(origin, type) and origin is not UnionType else annotation


def _has_instances(kind: object) -> TypeGuard[type]:
    """Whether `isinstance` accepts it as a type; it does not accept typed dictionaries, nor most protocols."""
    try:
        isinstance(None, kind)  # type: ignore[arg-type]  # that is the question
    except TypeError:
        return False
    return isinstance(kind, type)


def _is_logger(annotation: object) -> bool:
    if annotation in _LOGGERS:
        return True
    return isinstance(annotation, type) and issubclass(annotation, structlog.BoundLoggerBase)


def _is_state(annotation: object) -> bool:
    return get_origin(annotation) is Annotated and get_args(annotation)[-1] is _StateMark


# -- the values of parameters


def _message(message: Message) -> object:
    return message


def _delivery(_: Message) -> object:
    return CURRENT_HANDLING.get().shown


def _receipt(_: Message) -> object:
    return CURRENT_RECEIPT.get()


def _batch(_: Message) -> object:
    return CURRENT_BATCH.get()


def _logger_of(name: str | None) -> Fill:
    log = structlog.get_logger(name)

    def fill(_: Message) -> object:
        handling = CURRENT_HANDLING.get()
        return log.bind(key=handling.key, queue=handling.queue)

    return fill


def _state_of(kind: type) -> Fill:
    def fill(_: Message) -> object:
        return RESOURCES.get().state(kind)

    return fill


def _decoded_by(decode: Decoder) -> Fill:
    def fill(message: Message) -> object:
        return decode(message.payload)

    return fill
