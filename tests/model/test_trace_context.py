"""What the W3C calls a trace context is found, and nothing else."""

import pytest

from lbg_runtime.model.trace_context import trace_context

PARENT = f"00-{'a' * 32}-{'b' * 16}-01"


@pytest.mark.parametrize(
    "said",
    [
        {"traceparent": PARENT},
        {"traceparent": PARENT, "tracestate": "vendor=1,other=2"},
        {"traceparent": f"01-{'a' * 32}-{'b' * 16}-01-more"},
    ],
)
def test_a_context_is_found_as_it_came(said: dict[str, object]) -> None:
    assert trace_context({"colour": "red", **said}) == said


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"tracestate": "vendor=1"},
        {"traceparent": 1},
        {"traceparent": PARENT.upper()},
        {"traceparent": f"{PARENT}-more"},
        {"traceparent": f"00-{'0' * 32}-{'b' * 16}-01"},
        {"traceparent": f"00-{'a' * 32}-{'0' * 16}-01"},
        {"traceparent": f"{PARENT},{PARENT}", "tracestate": "vendor=1"},
    ],
)
def test_what_is_no_context_is_none(said: dict[str, object]) -> None:
    assert trace_context(said) == {}


@pytest.mark.parametrize("state", ["", " ", "a=\x7f", "ä=1", "a=" + "1" * 511])
def test_a_state_that_nobody_can_read_is_left_out(state: str) -> None:
    assert trace_context({"traceparent": PARENT, "tracestate": state}) == {"traceparent": PARENT}
