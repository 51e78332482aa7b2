"""Selectors: which messages a consumer wants, in the subset of SQL-92 that JMS defines.

A field that a message lacks is unknown, and so is everything that depends on it, and any comparison of values that
cannot be compared. A message is wanted if the whole expression is true. The grammar needs the extra `broker`.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from operator import add, ge, gt, le, lt, mul, sub, truediv
from typing import TYPE_CHECKING

from lbg_runtime.broker.engine.matching.wildcards import Pattern, Wild
from lbg_runtime.broker.engine.traits import Fields, FieldValue
from lbg_runtime.model.errors import BrokerRefusal

if TYPE_CHECKING:
    from lark import Lark, Token, Tree

Selector = Callable[[Fields], bool]
"""Whether a message with these fields is wanted."""

LARGEST_SELECTOR_BYTES = 2_000
"""As on PubSub+."""

_Term = Callable[[Fields], FieldValue]
_Number = int | float

_GRAMMAR = r"""
    ?start: or
    ?or: and ("OR"i and)*
    ?and: not ("AND"i not)*
    ?not: "NOT"i not -> negation
        | predicate
    ?predicate: sum
        | sum COMPARISON sum -> comparison
        | sum NEGATED? "BETWEEN"i sum "AND"i sum -> between
        | sum NEGATED? "IN"i "(" STRING ("," STRING)* ")" -> one_of
        | sum NEGATED? "LIKE"i STRING ("ESCAPE"i STRING)? -> like
        | sum "IS"i NEGATED? "NULL"i -> null
    ?sum: product (PLUS_MINUS product)*
    ?product: sign (TIMES_BY sign)*
    ?sign: PLUS_MINUS sign -> signed
        | primary
    ?primary: STRING -> text
        | APPROXIMATE -> approximate
        | EXACT -> exact
        | TRUE -> true
        | FALSE -> false
        | NAME -> name
        | "(" or ")"

    NEGATED: "NOT"i
    COMPARISON: "=" | "<>" | ">=" | "<=" | ">" | "<"
    PLUS_MINUS: "+" | "-"
    TIMES_BY: "*" | "/"
    TRUE.2: /TRUE\b/i
    FALSE.2: /FALSE\b/i
    STRING: /'(?:[^']|'')*'/
    APPROXIMATE: /\d+\.\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+/
    EXACT: /\d+[lL]?/
    NAME: /[A-Za-z_$][A-Za-z0-9_$]*/
    %ignore /\s+/
"""

_WILD = {"%": Wild.TEXT, "_": Wild.CHARACTER}
_ORDERS: Mapping[str, Callable[[_Number, _Number], bool]] = {">": gt, ">=": ge, "<": lt, "<=": le}
_DEEDS: Mapping[str, Callable[[_Number, _Number], _Number]] = {"+": add, "-": sub, "*": mul, "/": truediv}


def compile_selector(text: str) -> Selector:
    """Compile the text of a selector; 400 `Invalid Selector`, also for one that is too long."""
    if len(text.encode()) > LARGEST_SELECTOR_BYTES:
        raise BrokerRefusal(400, "Invalid Selector")
    try:
        from lark.exceptions import LarkError
    except ImportError:
        raise BrokerRefusal(503, "Selectors Need lbg-runtime[broker]") from None
    try:
        term = _term(_parser().parse(text))
    except (LarkError, RecursionError):
        raise BrokerRefusal(400, "Invalid Selector") from None
    return lambda values: term(values) is True


@cache
def _parser() -> "Lark":
    from lark import Lark

    return Lark(_GRAMMAR, parser="lalr", maybe_placeholders=False)


def _term(tree: "Tree[Token]") -> _Term:
    make = _MAKERS[str(tree.data)]
    return make(list(tree.children))


def _sub_terms(children: list["Tree[Token] | Token"]) -> list[_Term]:
    from lark import Tree

    return [_term(child) for child in children if isinstance(child, Tree)]


def _tokens(children: list["Tree[Token] | Token"]) -> list[str]:
    return [child for child in children if isinstance(child, str)]


def _named(children: list["Tree[Token] | Token"]) -> str:
    """The field that a test applies to, which can only be a field."""
    operand = children[0]
    if isinstance(operand, str) or operand.data != "name":
        raise BrokerRefusal(400, "Invalid Selector")
    return str(operand.children[0])


def _or(children: list["Tree[Token] | Token"]) -> _Term:
    terms = _sub_terms(children)

    def either(values: Fields) -> FieldValue:
        found = [_truth(term(values)) for term in terms]
        return True if True in found else None if None in found else False

    return either


def _and(children: list["Tree[Token] | Token"]) -> _Term:
    terms = _sub_terms(children)

    def both(values: Fields) -> FieldValue:
        found = [_truth(term(values)) for term in terms]
        return False if False in found else None if None in found else True

    return both


def _negation(children: list["Tree[Token] | Token"]) -> _Term:
    (term,) = _sub_terms(children)
    return lambda values: _opposite(_truth(term(values)))


def _comparison(children: list["Tree[Token] | Token"]) -> _Term:
    left, right = _sub_terms(children)
    (sign,) = _tokens(children)
    return lambda values: _compare(left(values), sign, right(values))


def _between(children: list["Tree[Token] | Token"]) -> _Term:
    middle, low, high = _sub_terms(children)
    is_negated = bool(_tokens(children))

    def between(values: Fields) -> FieldValue:
        value = middle(values)
        found = (_compare(value, ">=", low(values)), _compare(value, "<=", high(values)))
        inside = False if False in found else None if None in found else True
        return _opposite(inside) if is_negated else inside

    return between


def _one_of(children: list["Tree[Token] | Token"]) -> _Term:
    name, rest = _named(children), _tokens(children)
    wanted = frozenset(_unquoted(each) for each in rest if each.startswith("'"))
    is_negated = not rest[0].startswith("'")

    def one_of(values: Fields) -> FieldValue:
        value = values.get(name)
        return (value in wanted) is not is_negated if isinstance(value, str) else None

    return one_of


def _like(children: list["Tree[Token] | Token"]) -> _Term:
    name, rest = _named(children), _tokens(children)
    is_negated = not rest[0].startswith("'")
    pattern, *escapes = (_unquoted(each) for each in rest if each.startswith("'"))
    escape = escapes[0] if escapes else ""
    if len(escape) > 1:
        raise BrokerRefusal(400, "Invalid Selector")
    wanted = Pattern(_parts(pattern, escape))

    def like(values: Fields) -> FieldValue:
        value = values.get(name)
        return wanted.matches(value) is not is_negated if isinstance(value, str) else None

    return like


def _null(children: list["Tree[Token] | Token"]) -> _Term:
    name, negated = _named(children), _tokens(children)
    return lambda values: (values.get(name) is None) is not bool(negated)


def _calculation(children: list["Tree[Token] | Token"]) -> _Term:
    first, *terms = _sub_terms(children)
    steps = list(zip((_DEEDS[sign] for sign in _tokens(children)), terms, strict=True))

    def calculation(values: Fields) -> FieldValue:
        result = _number(first(values))
        for deed, term in steps:
            operand = _number(term(values))
            if result is None or operand is None:
                return None
            try:
                result = deed(result, operand)
            except (ZeroDivisionError, OverflowError):
                return None
        return result

    return calculation


def _signed(children: list["Tree[Token] | Token"]) -> _Term:
    (term,) = _sub_terms(children)
    factor = -1 if _tokens(children) == ["-"] else 1

    def signed(values: Fields) -> FieldValue:
        value = _number(term(values))
        return None if value is None else factor * value

    return signed


def _name(children: list["Tree[Token] | Token"]) -> _Term:
    (name,) = _tokens(children)
    return lambda values: values.get(name)


def _constant(read: Callable[[str], FieldValue]) -> Callable[[list["Tree[Token] | Token"]], _Term]:
    def constant(children: list["Tree[Token] | Token"]) -> _Term:
        value = read(_tokens(children)[0])
        return lambda _: value

    return constant


def _unquoted(text: str) -> str:
    return text[1:-1].replace("''", "'")


_MAKERS: Mapping[str, Callable[[list["Tree[Token] | Token"]], _Term]] = {
    "or": _or,
    "and": _and,
    "negation": _negation,
    "comparison": _comparison,
    "between": _between,
    "one_of": _one_of,
    "like": _like,
    "null": _null,
    "sum": _calculation,
    "product": _calculation,
    "signed": _signed,
    "name": _name,
    "text": _constant(_unquoted),
    "exact": _constant(lambda text: int(text.rstrip("lL"))),
    "approximate": _constant(float),
    "true": _constant(lambda _: True),
    "false": _constant(lambda _: False),
}


def _truth(value: FieldValue) -> bool | None:
    return value if isinstance(value, bool) else None


def _opposite(value: bool | None) -> bool | None:
    return None if value is None else not value


def _number(value: FieldValue) -> _Number | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _compare(left: FieldValue, sign: str, right: FieldValue) -> bool | None:
    numbers = _number(left), _number(right)
    if numbers[0] is not None and numbers[1] is not None:
        if sign in _ORDERS:
            return _ORDERS[sign](numbers[0], numbers[1])
        return (numbers[0] == numbers[1]) is (sign == "=")
    if sign in _ORDERS or left is None or type(left) is not type(right):
        return None
    return (left == right) is (sign == "=")


def _parts(text: str, escape: str) -> Iterator[str | Wild]:
    characters = iter(text)
    for each in characters:
        if escape and each == escape:
            yield from next(characters, "")
        else:
            yield _WILD.get(each, each)
