"""The limit of nesting is that of the JSON itself, whoever reads it and from wherever."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.model import nesting
from lbg_runtime.model.nesting import MAX_NESTING, is_nested_too_deep


def _nested(levels, inner="1"):
    return "[" * levels + inner + "]" * levels


@pytest.mark.parametrize("inner", ["1", '"]]"', r'"\"]"', r'"\\"', r'"\\\"]", "]"', '"ä", "]"', '"\ud800"'])
def test_the_limit_is_exact(inner):
    assert not is_nested_too_deep(_nested(MAX_NESTING, inner))
    assert is_nested_too_deep(_nested(MAX_NESTING + 1, inner))


def test_objects_count_like_arrays():
    text = '{"a": [' * (MAX_NESTING // 2) + "%s" + "]}" * (MAX_NESTING // 2)
    assert not is_nested_too_deep(text % "1")
    assert is_nested_too_deep(text % "{}")


@pytest.mark.parametrize("wide", ["[]", "{}", '"[["', r'"\"["'])
def test_many_side_by_side_are_not_deep(wide):
    assert not is_nested_too_deep(f"[{','.join([wide] * 10 * MAX_NESTING)}]")


def _depth(value):
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(_depth, inner), default=0)


_TEXT = st.text('a"\\[]{}\ud800ä', max_size=5)
_JSON = st.recursive(_TEXT, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3))


@given(_JSON, st.integers(0, 4), st.booleans())
def test_the_levels_are_those_of_the_value(value, limit, is_ascii):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(nesting, "MAX_NESTING", limit)
        assert is_nested_too_deep(json.dumps(value, ensure_ascii=is_ascii)) is (_depth(value) > limit)


@given(st.text('a"\\[]{},:1 ', max_size=30))
def test_what_is_not_too_deep_is_never_nested_deeper_for_a_reader(text):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(nesting, "MAX_NESTING", 2)
        if is_nested_too_deep(text):
            return
    try:
        value = json.loads(text)
    except ValueError:
        return
    assert _depth(value) <= 2


def _from_below(frames, call):
    return call() if frames == 0 else _from_below(frames - 1, call)


def test_what_is_not_too_deep_is_read_in_any_depth_of_calls():
    text = _nested(MAX_NESTING)
    assert _from_below(300, lambda: json.loads(text)) == json.loads(text)
