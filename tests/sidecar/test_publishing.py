"""The publisher for what an application publishes, and its ledger."""

import pytest

from lbg_runtime.model.errors import UserError
from lbg_runtime.sidecar.publishing import ApplicationPublisher
from lbg_runtime.testing.group_broker import GroupBroker
from lbg_runtime.testing.moments import Moments
from lbg_runtime.transport.memory.transport import MemoryTransport
from tests.runtime.conftest import make_settings


async def test_an_application_that_publishes_when_the_member_has_left_is_refused_and_begins_no_ledger(tmp_path) -> None:
    """If nothing had been published before, one was begun that nobody ended: the run's verdict was unknown."""
    session = MemoryTransport(GroupBroker(Moments(), lambda: None), "member")
    settings = make_settings(ops={"journal": {"path": str(tmp_path)}})
    publisher = ApplicationPublisher(settings, session, tuple)
    await publisher.close()
    with pytest.raises(UserError, match="as the member is leaving"):
        publisher.get()
    assert list(tmp_path.iterdir()) == []
