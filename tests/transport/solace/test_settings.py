"""Settings show no secret and speak the client's language."""

from dataclasses import replace
from importlib import import_module

import pytest

from lbg_runtime.model.connection import LONGEST_SILENCE_MS
from lbg_runtime.transport.solace.settings import KEEP_ALIVE_INTERVAL_MS, KEEP_ALIVE_LIMIT, SolaceSettings

SETTINGS = SolaceSettings(
    hosts=("tcps://one:55443", "tcps://two:55443"),
    client_name="member-1",
    vpn="sales",
    username="worker",
    password="hush",
    trust_store_path="/trusted",
    validate_certificate=False,
)


def test_the_password_is_in_no_representation() -> None:
    assert "hush" not in repr(SETTINGS)
    assert "hush" not in str(SETTINGS)


def test_properties_carry_every_setting() -> None:
    properties = SETTINGS.properties()
    assert properties["solace.messaging.transport.host"] == "tcps://one:55443,tcps://two:55443"
    assert properties["solace.messaging.service.vpn-name"] == "sales"
    assert properties["solace.messaging.client.name"] == "member-1"
    assert properties["solace.messaging.authentication.basic.username"] == "worker"
    assert properties["solace.messaging.authentication.basic.password"] == "hush"
    assert properties["solace.messaging.tls.trust-store-path"] == "/trusted"
    assert properties["solace.messaging.tls.cert-validated"] is False


def test_an_outage_is_retried_for_ever_and_the_first_connection_is_not() -> None:
    properties = SETTINGS.properties()
    assert properties["solace.messaging.transport.reconnection-attempts"] == -1
    assert properties["solace.messaging.transport.connection-retries"] == 0


def test_the_client_knows_every_name() -> None:
    # The project's module first: it keeps the client from setting up logging.
    assert import_module("lbg_runtime.transport.solace.library").missing_parts() is None
    known = import_module("solace.messaging.config._ccsmp_property_mapping").CCSMP_SESSION_PROP_MAPPING
    assert set(SETTINGS.properties()) <= set(known)


def test_a_dead_connection_is_known_for_dead_within_the_longest_silence() -> None:
    assert KEEP_ALIVE_INTERVAL_MS * (KEEP_ALIVE_LIMIT + 1) <= LONGEST_SILENCE_MS


@pytest.mark.parametrize(
    ("max_in_flight", "window"), [(None, 255), (1, 32), (64, 32), (256, 128), (509, 254), (10_000, 255)]
)
def test_half_of_what_closes_the_intake_may_be_under_way(max_in_flight: int | None, window: int) -> None:
    assert replace(SETTINGS, max_in_flight=max_in_flight).flow_window == window
