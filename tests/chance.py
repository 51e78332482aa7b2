"""The chances that members take."""

import itertools
import random
from types import SimpleNamespace

import pytest

from lbg_runtime.runtime import app as app_module


def seed_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the members of a test take the same chances in every run, by the order in which they begin."""
    seeds = itertools.count()
    monkeypatch.setattr(app_module, "random", SimpleNamespace(Random=lambda: random.Random(next(seeds))))
