"""Many seeds, summed up; a failing one comes with no more faults than it needs."""

from lbg_runtime.config.rebind_mode import RebindMode
from lbg_runtime.sim.campaign import Scope, run_campaign, run_seed, shrink
from lbg_runtime.sim.parts import Parts
from tests.sim.test_laws import DropsSettlementsAndKeepsTheHandle

SCOPE = Scope(RebindMode.COOPERATIVE)


def test_a_campaign_adds_its_seeds_up_tells_how_far_it_is_and_has_a_story() -> None:
    progress: list[int] = []
    campaign = run_campaign(Scope(RebindMode.COOPERATIVE, members=4, queues=8), range(1, 3), progress.append)
    assert (campaign.seeds, campaign.failures, len(campaign.stories)) == (2, [], 1)
    assert campaign.published > 0
    assert campaign.faults > 0
    assert progress == [1, 2]
    # Its cooperative members move what they must and nothing else; test_story.py has those that only count.
    story = campaign.stories[0]
    assert story.violations == ()
    assert (story.join_changes, story.steady_changes) == (2, 0)
    assert story.time_to_own_ms is not None
    assert story.time_to_own_ms < 5_000
    assert max(story.move_pauses_ms) < 500
    assert (story.duplicates.unfinished, story.duplicates.after_hand_over) == (0, 0)


def test_a_failing_seed_is_shrunk_to_the_faults_it_needs() -> None:
    # It breaks laws when a connection breaks, and at no other time.
    parts = Parts(make_machine=DropsSettlementsAndKeepsTheHandle)
    # The first that will do is known.
    failed = (run_seed(SCOPE, seed, parts=parts) for seed in range(158, 258))
    seed, plan = next((each.seed, each.plan) for each in failed if each.violations and 2 < len(each.plan) < 12)
    needed = shrink(SCOPE, seed, plan, parts)
    assert 0 < len(needed) <= 2 < len(plan)
    numbers = [fault.number for fault in needed]
    assert run_seed(SCOPE, seed, numbers, parts).violations
    assert not run_seed(SCOPE, seed, numbers[1:], parts).violations
    assert not run_seed(SCOPE, seed, numbers).violations, "the faults are not what is wrong"


def test_sizes_that_are_asked_for_are_kept() -> None:
    settings = run_seed(Scope(RebindMode.CYCLE, members=5, queues=7), 3).settings
    assert (settings.planned_members, settings.queue_count) == (5, 7)


def test_both_modes_of_a_seed_differ_in_nothing_else() -> None:
    cooperative, cycle = (run_seed(Scope(mode), 4) for mode in RebindMode)
    assert cooperative.plan == cycle.plan
    assert cooperative.settings.handlers == cycle.settings.handlers
    assert cooperative.settings.rebind == cycle.settings.rebind
