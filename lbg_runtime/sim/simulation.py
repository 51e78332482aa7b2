"""Runs one seed and judges it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from lbg_runtime.model.errors import InvariantViolated
from lbg_runtime.sim.chance import SeededChance
from lbg_runtime.sim.control_noise import RequestKind
from lbg_runtime.sim.facts import Facts
from lbg_runtime.sim.faults import Misfortune
from lbg_runtime.sim.figures import Duplicates, count_duplicates
from lbg_runtime.sim.history import Happening, Life
from lbg_runtime.sim.laws import check_laws
from lbg_runtime.sim.parts import Parts
from lbg_runtime.sim.schedule import SimulationLoops
from lbg_runtime.sim.settings import Fault, FaultKind, SimSettings, draw_faults, draw_settings
from lbg_runtime.sim.violation import Violation
from lbg_runtime.sim.world import World


@dataclass(frozen=True, slots=True)
class SimResult:
    seed: int
    settings: SimSettings
    violations: tuple[Violation, ...]
    facts: Facts
    published: int
    handled: int
    duplicates: Duplicates
    owners: tuple[Life | None, ...]
    """The life that was fed, by queue, when the run had come to rest and before its members stopped."""
    plan: tuple[Fault, ...]
    faults: Counter[FaultKind]
    """The planned faults that happened."""
    requests: Counter[RequestKind]

    @property
    def history(self) -> Sequence[Happening]:
        """Everything that happened, in order."""
        return self.facts.history


def simulate(
    seed: int,
    settings: SimSettings | None = None,
    parts: Parts | None = None,
    faults: tuple[Fault, ...] | None = None,
) -> SimResult:
    """Run a seed to its end and check every law; the same arguments give the same history, always."""
    chance = SeededChance(seed)
    chosen = settings or draw_settings(chance.fork("settings"))
    plan = draw_faults(chosen, chance.fork("plan")) if faults is None else faults
    world = World(chosen, chance, parts or Parts())
    misfortune = Misfortune(world, chance.fork("faults"))
    misfortune.expect(plan)
    violations: list[Violation] = []
    try:
        world.run()
    except InvariantViolated as error:
        violations.append(Violation("machines_keep_their_invariants", world.schedule.now_ms, str(error)))
    except SimulationLoops as error:
        violations.append(Violation("simulated_time_goes_on", world.schedule.now_ms, str(error)))
    facts = Facts(world.history)
    violations += check_laws(facts, chosen)
    return SimResult(
        seed=seed,
        settings=chosen,
        violations=tuple(violations),
        facts=facts,
        published=len(facts.confirmed),
        handled=sum(1 for delivery in facts.deliveries.values() if delivery.handlings),
        duplicates=count_duplicates(facts),
        owners=world.owners,
        plan=plan,
        faults=misfortune.happened,
        requests=world.requests,
    )
