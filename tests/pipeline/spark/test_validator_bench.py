"""The run that `lbg bench pipeline` makes up is one, and what is wrong with it is found, no more and no less."""

from pathlib import Path

from lbg_runtime.journal.layout import count_records
from lbg_runtime.pipeline.parts import validate_locally
from lbg_runtime.pipeline.spark.validator_bench import make_run
from lbg_runtime.validator.findings import Law


def test_what_is_seeded_is_found(tmp_path: Path) -> None:
    run = tmp_path / "run=bench"
    seeded = make_run(run, 20_000)
    assert count_records(run) == seeded.handlings
    verdict = validate_locally(run)
    assert {law: count for law, count in verdict.counts.items() if count} == {
        Law.LOSS: seeded.lost,
        Law.DUPLICATE_WITHOUT_FAULT: seeded.copies,
        Law.DUPLICATE_UNFLAGGED: seeded.copies,
    }
    assert verdict.accounts.published == 20_000
