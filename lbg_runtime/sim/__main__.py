"""`python -m lbg_runtime.sim`: run many seeds, or replay one that failed. Exit code 1 where a law was broken."""

import argparse
import sys
from collections import Counter
from dataclasses import fields

from lbg_runtime.sim.simulation import SimResult, simulate


def main() -> int:
    """Read the arguments, run, report."""
    parser = argparse.ArgumentParser(prog="python -m lbg_runtime.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, metavar="N", help="how many seeds to run")
    parser.add_argument("--first-seed", type=int, default=0, metavar="SEED", help="the first of them")
    parser.add_argument("--seed", type=int, metavar="SEED", help="run only this one and show its settings")
    parser.add_argument("--history", action="store_true", help="with --seed: show everything that happened")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        return _replay(arguments.seed, with_history=arguments.history)
    return _run_many(range(arguments.first_seed, arguments.first_seed + arguments.seeds))


def _run_many(seeds: range) -> int:
    failed = 0
    totals: Counter[str] = Counter()
    for seed in seeds:
        result = simulate(seed)
        totals["published"] += result.published
        totals["handled"] += result.handled
        totals["duplicates, all excused"] += result.duplicates
        totals["faults"] += result.faults.total()
        totals["requests"] += result.requests.total()
        if result.violations:
            failed += 1
            _say(f"seed {seed} breaks {', '.join(sorted({v.law for v in result.violations}))}")
            _say(f"  replay: python -m lbg_runtime.sim --seed {seed} --history")
    _say(f"{len(seeds)} seeds, {failed} failed; " + ", ".join(f"{name} {count}" for name, count in totals.items()))
    return 1 if failed else 0


def _replay(seed: int, *, with_history: bool) -> int:
    result = simulate(seed)
    for field in fields(result.settings):
        _say(f"{field.name}: {getattr(result.settings, field.name)}")
    if with_history:
        for position, happening in enumerate(result.history):
            _say(f"{position:6} {happening}")
    _report(result)
    return 1 if result.violations else 0


def _report(result: SimResult) -> None:
    faults = ", ".join(f"{kind.value} {count}" for kind, count in result.faults.items()) or "none"
    requests = ", ".join(f"{kind.value} {count}" for kind, count in result.requests.items()) or "none"
    _say(f"published {result.published}, handled {result.handled}, duplicates {result.duplicates}")
    _say(f"faults: {faults}; requests: {requests}")
    for violation in result.violations:
        _say(f"{violation.at_ms} ms, {violation.law}: {violation.story}")
    _say("every law holds" if not result.violations else f"{len(result.violations)} violations")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
