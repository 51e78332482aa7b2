"""docs/metrics.md names nothing that a member or a publisher does not report."""

import re
from pathlib import Path

from lbg_runtime.metrics.member import DURATION_METRICS, FIGURE_METRICS, STATE_METRICS
from lbg_runtime.metrics.page import metrics_page
from lbg_runtime.metrics.publisher import CONFIRM_DURATIONS, PUBLISHER_COUNTERS, UNCONFIRMED

DOCS = Path(__file__).parents[2] / "docs"
PARTS_OF_A_HISTOGRAM = ("_bucket", "_sum", "_count")


def reported() -> set[str]:
    durations = [*(metric.name for metric in DURATION_METRICS), CONFIRM_DURATIONS[0]]
    return {
        *(name for name, _, _ in STATE_METRICS),
        *(metric.name for metric in FIGURE_METRICS),
        *durations,
        *(name + part for name in durations for part in PARTS_OF_A_HISTOGRAM),
        *(name for name, _, _ in PUBLISHER_COUNTERS),
        UNCONFIRMED[0],
    }


def test_every_question_is_put_to_figures_that_are_reported() -> None:
    alerts, questions = (
        set(re.findall(r"\blbg_\w+", metrics_page().partition(f"## {part}\n")[2].partition("\n## ")[0]))
        for part in ("Alerts", "Questions")
    )
    assert min(len(alerts), len(questions)) > 6
    assert alerts | questions <= reported()


def test_what_other_pages_call_a_figure_is_reported() -> None:
    """Words that begin as figures do: those of properties and modules begin otherwise."""
    first_words = {name.split("_")[1] for name in reported() - {"lbg_publisher_unconfirmed"}} - {"publisher"}
    named = {
        name
        for page in DOCS.glob("*.md")
        for name in re.findall(rf"`(lbg_(?:{'|'.join(sorted(first_words))})_\w+)`", page.read_text())
    }
    assert len(named) > 20
    assert named <= reported()
