"""Members that come, go, lose their connection, handlers that fail and hang: the promises hold all the same."""

import pytest

from tests.runtime.visitors import Visitors, first_handlings

MEMBERS = 3
KEYS = 6
ROUNDS = 30
SECTIONS = {
    "rebind": {"interval": "3s", "drain_timeout": "4s"},
    "failure": {"timeout": "2s", "backoff": {"initial": "50ms", "maximum": "1s"}},
    "dispatch": {"max_in_flight": 8, "runners": 4},
}
QUICK = {"rebind": {"drain_timeout": "4s", "min_tenure": "1s"}}


class Story(Visitors):
    def __init__(self, trial, seed, mode):
        super().__init__(trial, seed)
        self.mode = mode

    def member(self, index):
        if self.mode == "cycle":
            return self.trial.member(index, MEMBERS, work=self.work, **SECTIONS)
        return self.trial.discovered(f"member-{index}", work=self.work, **SECTIONS | QUICK)


EVERYTHING = {f"k{number}": list(range(1, ROUNDS + 1)) for number in range(KEYS)}


@pytest.mark.parametrize("mode", ["cycle", "cooperative"])
@pytest.mark.parametrize("seed", range(4))
async def test_members_that_come_and_go_keep_the_order_without_overlap(trial, seed, mode):
    story = Story(trial, seed, mode)
    async with trial.at_work(story.member(0)):
        await story.play(ROUNDS, KEYS, with_outages=False)
    assert first_handlings(trial.sequences()) == EVERYTHING
    assert story.overlaps == []
    assert len(trial.handled) == ROUNDS * KEYS, "nothing was handled twice, as nothing was lost from sight"


@pytest.mark.parametrize("mode", ["cycle", "cooperative"])
@pytest.mark.parametrize("seed", range(100, 105))
async def test_outages_cost_repetition_and_never_a_message_or_its_place(trial, seed, mode):
    story = Story(trial, seed, mode)
    async with trial.at_work(story.member(0)):
        await story.play(ROUNDS, KEYS, with_outages=True)
    assert first_handlings(trial.sequences()) == EVERYTHING
