"""What a user of the development broker may do, changed while its clients are logged in."""

from dataclasses import replace

from lbg_runtime.broker.engine.accounts import AclProfile, TopicRule
from lbg_runtime.broker.engine.engine import DEFAULT_VPN, Engine
from lbg_runtime.testing.transport_harness import USERNAME


def let_subscribe(engine: Engine, username: str = USERNAME, *, is_allowed: bool) -> None:
    """See `TransportHarness.let_subscribe`."""
    accounts = engine.administration.accounts(DEFAULT_VPN)
    (known,) = (each for each in accounts.all() if each.name == username)
    accounts.put(replace(known, acl=AclProfile(subscribe=TopicRule(is_allowed))))
