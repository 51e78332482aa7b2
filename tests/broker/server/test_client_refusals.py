"""The official client against the server: what it is told when the broker says no."""

import pytest
from solace.messaging.config.sub_code import SolClientSubCode
from solace.messaging.errors.pubsubplus_client_error import AuthenticationError, PubSubPlusClientError
from solace.messaging.resources.queue import Queue

pytestmark = pytest.mark.real_time


def refused_login(client_class, port, **options):
    client = client_class(port, "refused", **options)
    with pytest.raises(PubSubPlusClientError) as refused:
        client.connect()
    client.service.disconnect()
    return refused.value


def test_an_unknown_vpn_is_refused(broker, client_class):
    error = refused_login(client_class, broker.port, **{"solace.messaging.service.vpn-name": "nowhere"})
    assert error.sub_code == SolClientSubCode.SOLCLIENT_SUBCODE_MSG_VPN_NOT_ALLOWED.value


def test_a_wrong_password_and_an_unknown_user_are_refused(broker, client_class):
    broker.call(broker.server.engine.add_vpn, "guarded")
    broker.call(broker.server.engine.add_user, "guarded", "user", "right")
    guarded = {"solace.messaging.service.vpn-name": "guarded"}
    for username, password in (("user", "wrong"), ("stranger", "right")):
        credentials = {
            "solace.messaging.authentication.scheme.basic.username": username,
            "solace.messaging.authentication.scheme.basic.password": password,
        }
        assert isinstance(refused_login(client_class, broker.port, **guarded, **credentials), AuthenticationError)
    right = {"solace.messaging.authentication.scheme.basic.password": "right"}
    client_class(broker.port, "welcome", **guarded, **right).connect().close()


def test_queues_of_another_vpn_are_out_of_sight(broker, client_class):
    broker.call(broker.server.engine.add_vpn, "apart")
    broker.create_queue("apart", "apart/>", vpn="apart")
    broker.create_queue("apart", "apart/>")
    client = client_class(broker.port, "apart", **{"solace.messaging.service.vpn-name": "apart"}).connect()
    client.publish(client.publisher(), "apart/a", "1")
    client.close()
    assert broker.status("apart").depth == 0


def test_an_unknown_queue_has_its_own_subcode(broker, client):
    with pytest.raises(PubSubPlusClientError) as refused:
        client.receiver("unknown")
    assert refused.value.sub_code == SolClientSubCode.SOLCLIENT_SUBCODE_UNKNOWN_QUEUE_NAME.value


def test_a_queue_takes_no_more_flows_than_it_may(broker, client, make_client):
    broker.create_queue("narrow", max_bind_count=1)
    first = client.receiver("narrow")
    with pytest.raises(PubSubPlusClientError) as refused:
        make_client("narrow").receiver("narrow")
    assert refused.value.sub_code == SolClientSubCode.SOLCLIENT_SUBCODE_MAX_CLIENTS_FOR_QUEUE.value
    first.close()


def test_what_is_no_selector_is_refused(broker, client):
    broker.create_queue("selected")
    builder = client.service.create_persistent_message_receiver_builder().with_message_selector("k = ")
    receiver = builder.build(Queue.durable_exclusive_queue("selected"))
    with pytest.raises(PubSubPlusClientError) as refused:
        receiver.start()
    assert refused.value.sub_code == SolClientSubCode.SOLCLIENT_SUBCODE_INVALID_SELECTOR.value
