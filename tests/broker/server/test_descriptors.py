"""A broker whose process has no file descriptor left for another connection."""

import os
import socket
from contextlib import ExitStack, suppress

import pytest
from structlog.testing import capture_logs

from lbg_runtime.testing.broker_on_port import BrokerOnPort
from tests.broker.server.test_connection import LOGIN
from tests.open_files import no_descriptor_left
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.real_time


def test_that_no_client_is_let_in_is_told_once_and_that_they_are_again() -> None:
    """The loop ends such connections and tells nobody."""
    with ExitStack() as stack, capture_logs() as logs:
        broker = stack.enter_context(BrokerOnPort())
        clients = [stack.enter_context(socket.socket()) for _ in range(4)]

        def answered(client: socket.socket) -> bool:
            client.settimeout(PATIENCE_S)
            client.connect((broker.host, broker.port))
            with suppress(ConnectionError):
                client.sendall(LOGIN)
                return bool(client.recv(1))
            return False

        last = os.open(os.devnull, os.O_RDONLY)
        with no_descriptor_left():
            os.close(last)
            assert [answered(client) for client in clients[:3]] == [True, False, False]
        # The loop takes what it is to end for as long as more comes.
        assert broker.client_names() == ["cl-1"]
        assert answered(clients[3])
    told = [(each["event"], each["connections"]) for each in logs if each["event"].startswith("clients_")]
    assert told == [("clients_not_let_in", 1), ("clients_let_in", 2)]
