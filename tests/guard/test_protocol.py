"""What guards raise says of which effect it is, and keeps that as facts, also across processes."""

import pickle

import pytest

from lbg_runtime.guard.protocol import (
    ConnectionInTransaction,
    ConnectionUnfit,
    EffectEndedTransaction,
    EffectNotRun,
    EffectSpoiledTransaction,
    EffectUndone,
    TextNotHeld,
    TokenMissing,
)
from lbg_runtime.model.errors import BatchCutShort, LbgError


@pytest.mark.parametrize(
    ("error", "facts"),
    [
        (TokenMissing("orders/new"), {"topic": "orders/new"}),
        (EffectEndedTransaction("booked"), {"scope": "booked"}),
        (EffectUndone("booked"), {"scope": "booked"}),
        (EffectSpoiledTransaction("booked"), {"scope": "booked"}),
        (ConnectionInTransaction("booked"), {"scope": "booked"}),
        (ConnectionUnfit("booked", "is in pipeline mode"), {"scope": "booked", "reason": "is in pipeline mode"}),
        (TextNotHeld("booked", "LATIN1"), {"scope": "booked", "encoding": "LATIN1"}),
        (EffectNotRun("booked"), {"scope": "booked"}),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, LbgError) else "",
)
def test_a_failure_has_its_facts_and_names_them(error: LbgError, facts: dict[str, str]) -> None:
    assert vars(error) == facts
    assert all(fact in str(error) for fact in facts.values())
    arrived = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (type(arrived), str(arrived), vars(arrived)) == (type(error), str(error), facts)


def test_what_was_undone_with_others_is_no_failure_of_its_own_message() -> None:
    assert isinstance(EffectUndone("booked"), BatchCutShort)
