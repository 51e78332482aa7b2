"""Knows what a name that a `type` statement has made stands for."""

import typing

from typing_extensions import TypeAliasType

# Up to Python 3.13 the statement, which there is from 3.12 on, and its stand-in for older ones make different objects.
_ALIASES = (TypeAliasType, getattr(typing, "TypeAliasType", TypeAliasType))


def stands_for(annotation: object) -> object:
    """What such a name stands for; any other annotation itself.

    A name whose definition has another one that is not defined yet is left as it is: pydantic reads it later.
    """
    if not isinstance(annotation, _ALIASES):
        return annotation
    try:
        value: object = annotation.__value__
    except NameError:
        return annotation
    return stands_for(value)
