"""The queues of a group that is re-striped."""

import pytest

from tests.runtime.restripe.restripe_world import made_queues


@pytest.fixture
def queues(trial, settings):
    return made_queues(trial, settings)
