"""What is made of a run's handlings."""

from dataclasses import replace

import pytest

from lbg_runtime.cli.comparison.figures import Figures, Handled, Story, figures_of

STORY = Story({"a": 3}, join_s=10, crash_s=20, interval_s=0.5)


def handled(number: int, start_s: float, member: str = "ann", done_s: float | None = None, key: str = "a") -> Handled:
    return Handled(member, key, number, start_s, start_s + 0.1 if done_s is None else done_s)


def judged(*handlings: Handled, story: Story = STORY) -> Figures:
    return figures_of(handlings, story, 2)


def test_a_run_in_order_has_no_errors():
    figures = judged(handled(1, 1), handled(2, 2), handled(3, 3))
    assert (figures.published, figures.handled, figures.lost, figures.duplicates) == (3, 3, 0, 0)
    assert (figures.order_errors, figures.overlaps, figures.owner_changes) == (0, 0, 0)


def test_a_message_after_a_later_one_of_its_key_is_an_error_of_order():
    assert judged(handled(1, 1), handled(3, 2), handled(2, 3)).order_errors == 1
    assert judged(handled(3, 1), handled(1, 2), handled(2, 3)).order_errors == 2


def test_a_repeat_is_no_error_of_order():
    figures = judged(handled(1, 1), handled(2, 2), handled(1, 3), handled(3, 4))
    assert (figures.order_errors, figures.duplicates) == (0, 1)


def test_what_nobody_handled_is_lost():
    assert judged(handled(1, 1), handled(3, 2)).lost == 1


def test_two_members_with_one_key_at_once_overlap():
    assert judged(handled(1, 1, "ann", done_s=3), handled(2, 2, "bob")).overlaps == 1
    assert judged(handled(1, 1, "ann", done_s=3), handled(2, 2, "ann")).overlaps == 0
    assert judged(handled(1, 1, "ann", done_s=2), handled(2, 2, "bob")).overlaps == 0


def test_everything_within_one_long_handling_overlaps_with_it():
    story = replace(STORY, published={"a": 29})
    short = [handled(number, number, "bob") for number in range(2, 30)]
    assert judged(handled(1, 1, "ann", done_s=100), *short, story=story).overlaps == 28


def test_owner_changes_are_counted_in_all_and_before_anybody_came():
    figures = judged(handled(1, 1, "ann"), handled(2, 2, "bob"), handled(3, 12, "ann"))
    assert (figures.owner_changes, figures.steady_owner_changes) == (2, 1)


def test_the_spread_is_the_busiest_members_part_of_an_even_share():
    figures = judged(handled(1, 1, "ann"), handled(2, 2, "ann"), handled(3, 3, "ann"), handled(4, 4, "bob"))
    assert figures.spread == pytest.approx(1.5)
    assert figures.keys_per_member == 1


def test_pauses_are_what_a_key_waited_beyond_its_stream():
    story = replace(STORY, published={"a": 3, "b": 2})
    figures = judged(
        handled(1, 9.8),
        handled(2, 12.0),
        handled(3, 21.0),
        handled(1, 19.9, key="b"),
        handled(2, 20.6, key="b"),
        story=story,
    )
    assert figures.join_pause_ms == 1_500, "from the join, not from the message before it"
    assert figures.crash_pause_ms == 500


def test_nothing_handled_is_all_lost():
    figures = judged()
    assert (figures.lost, figures.spread, figures.keys_per_member, figures.join_pause_ms) == (3, 0, 0, 0)
