"""Seeds that are kept in tests, as the runs that they were when they were found."""

from dataclasses import replace

from lbg_runtime.sim.campaign import Scope
from lbg_runtime.sim.chance import SeededChance
from lbg_runtime.sim.parts import Parts
from lbg_runtime.sim.settings import FaultKind, SimSettings, draw_settings
from lbg_runtime.sim.simulation import SimResult, simulate

LATER = (FaultKind.HANG, FaultKind.TWIN)


def as_before(settings: SimSettings) -> SimSettings:
    """The settings without what came later: faults, so that the plan is that of before, and messages that lag."""
    return replace(
        settings,
        faults=tuple(kind for kind in settings.faults if kind not in LATER),
        control=replace(settings.control, last_words_arrive=False),
        message_lag_ms=0,
        heeds_stops=False,
    )


def run_old_seed(scope: Scope, seed: int, parts: Parts | None = None) -> SimResult:
    """As `run_seed`."""
    drawn = draw_settings(SeededChance(seed).fork("settings"), scope.mode, scope.members, scope.queues)
    return simulate(seed, as_before(drawn), parts)
