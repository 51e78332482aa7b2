"""Reads signatures of functions whose annotations may have names that only type checkers know."""

import inspect
import sys
from collections.abc import Callable
from typing import ForwardRef

if sys.version_info >= (3, 14):
    from annotationlib import Format

    def _read(function: Callable[..., object]) -> inspect.Signature:
        # Annotations are looked up when they are asked for, and otherwise this raises the first `NameError`.
        return inspect.signature(function, annotation_format=Format.FORWARDREF)
else:
    _read = inspect.signature


def signature_of(function: Callable[..., object]) -> inspect.Signature:
    """The signature, in which an annotation with a name that is not there at run time is a text.

    Under `from __future__ import annotations`, each of them is one. Raises `TypeError` or `ValueError` for what has no
    signature.
    """
    found = _read(function)
    parameters = [each.replace(annotation=_as_text(each.annotation)) for each in found.parameters.values()]
    return found.replace(parameters=parameters, return_annotation=_as_text(found.return_annotation))


def _as_text(annotation: object) -> object:
    return annotation.__forward_arg__ if isinstance(annotation, ForwardRef) else annotation
