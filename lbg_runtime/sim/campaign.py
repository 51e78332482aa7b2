"""Many seeds of one mode, summed up; and a failing seed reduced to the faults that it needs to fail."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lbg_runtime.config.rebind_mode import RebindMode
from lbg_runtime.sim.chance import SeededChance
from lbg_runtime.sim.figures import Duplicates
from lbg_runtime.sim.parts import Parts
from lbg_runtime.sim.settings import Fault, SimSettings, draw_faults, draw_settings
from lbg_runtime.sim.simulation import SimResult, simulate
from lbg_runtime.sim.story import StoryFigures, tell_story
from lbg_runtime.sim.violation import Violation

STORY_MEMBERS = 4
STORY_QUEUES = 16
SEEDS_PER_STORY = 20
MOST_STORIES = 30


@dataclass(frozen=True, slots=True)
class Scope:
    """Limits what seeds may draw; None means no limit."""

    mode: RebindMode
    members: int | None = None
    queues: int | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A seed, or a story, that broke a law."""

    seed: int
    laws: tuple[str, ...]
    faults: tuple[Fault, ...]
    """The faults that it needs to fail; empty for a story, whose faults are always the same."""
    is_story: bool = False


@dataclass(slots=True)
class Campaign:
    """The results of a mode's seeds."""

    scope: Scope
    seeds: int = 0
    published: int = 0
    handled: int = 0
    faults: int = 0
    duplicates: Duplicates = field(default_factory=Duplicates)
    failures: list[Failure] = field(default_factory=list)
    stories: list[StoryFigures] = field(default_factory=list)

    @property
    def broken_laws(self) -> tuple[str, ...]:
        """The laws that any seed broke."""
        return tuple(sorted({law for failure in self.failures for law in failure.laws}))


def run_campaign(scope: Scope, seeds: range, on_progress: Callable[[int], None]) -> Campaign:
    """Mixed faults for every seed, and a story for every 20th; `on_progress` gets the number of seeds done."""
    campaign = Campaign(scope)
    for done, seed in enumerate(seeds):
        result = run_seed(scope, seed)
        _add(campaign, result)
        if result.violations:
            faults = shrink(scope, seed, result.plan)
            campaign.failures.append(Failure(seed, _laws(result.violations), faults))
        if done % SEEDS_PER_STORY == 0 and len(campaign.stories) < MOST_STORIES:
            story = tell_story(seed, scope.mode, scope.members or STORY_MEMBERS, scope.queues or STORY_QUEUES)
            campaign.stories.append(story)
            if story.violations:
                campaign.failures.append(Failure(seed, _laws(story.violations), (), is_story=True))
        on_progress(done + 1)
    return campaign


def run_seed(scope: Scope, seed: int, numbers: Sequence[int] | None = None, parts: Parts | None = None) -> SimResult:
    """Run one seed, with all its faults or only those with these numbers."""
    settings, plan = draw_seed(scope, seed)
    chosen = plan if numbers is None else tuple(fault for fault in plan if fault.number in numbers)
    return simulate(seed, settings, parts, chosen)


def draw_seed(scope: Scope, seed: int) -> tuple[SimSettings, tuple[Fault, ...]]:
    settings = draw_settings(SeededChance(seed).fork("settings"), scope.mode, scope.members, scope.queues)
    return settings, draw_faults(settings, SeededChance(seed).fork("plan"))


def shrink(scope: Scope, seed: int, plan: tuple[Fault, ...], parts: Parts | None = None) -> tuple[Fault, ...]:
    """Remove faults one by one, starting over after each removal, as long as the seed still breaks a law."""
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for fault in plan:
            fewer = tuple(other for other in plan if other is not fault)
            if run_seed(scope, seed, [other.number for other in fewer], parts).violations:
                plan, is_smaller = fewer, True
    return plan


def _laws(violations: Sequence[Violation]) -> tuple[str, ...]:
    return tuple(sorted({violation.law for violation in violations}))


def _add(campaign: Campaign, result: SimResult) -> None:
    campaign.seeds += 1
    campaign.published += result.published
    campaign.handled += result.handled
    campaign.faults += result.faults.total()
    campaign.duplicates += result.duplicates
