"""Patterns alone: what they match, and that no pattern and no text make it slow."""

import re
import time

from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.broker.engine.matching.wildcards import Pattern, Wild

PARTS = st.lists(st.sampled_from(["a", "b", "\n", Wild.CHARACTER, Wild.TEXT]), max_size=8)
WORDS = {Wild.CHARACTER: ".", Wild.TEXT: ".*"}


@given(PARTS, st.text(alphabet="ab\n", max_size=10))
def test_a_pattern_matches_what_the_same_regular_expression_does(parts, text):
    written = "".join(WORDS[each] if isinstance(each, Wild) else each for each in parts)
    assert Pattern(parts).matches(text) is (re.fullmatch(written, text, re.DOTALL) is not None)


def test_no_pattern_takes_longer_for_what_almost_matches():
    pattern = Pattern([Wild.TEXT, "a"] * 900 + [Wild.CHARACTER, Wild.TEXT, "b"])
    started_s = time.process_time()
    assert not pattern.matches("a" * 20_000)
    assert time.process_time() - started_s < 2  # It takes hundredths; one that goes back never ends.
