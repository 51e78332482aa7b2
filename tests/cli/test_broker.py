import os
import select
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import aiohttp
import httpx
import pytest
from aiohttp import WSMsgType
from solace.messaging.config.missing_resources_creation_configuration import MissingResourcesCreationStrategy
from solace.messaging.config.replay_strategy import ReplayStrategy
from solace.messaging.errors.pubsubplus_client_error import PubSubPlusClientError
from solace.messaging.messaging_service import MessagingService
from solace.messaging.resources.queue import Queue
from solace.messaging.resources.topic import Topic
from solace.messaging.resources.topic_subscription import TopicSubscription

from lbg_runtime.broker.server.tls import TlsFiles
from lbg_runtime.cli.broker import tls_files
from lbg_runtime.config.listen_address import ListenAddress
from lbg_runtime.model.errors import UserError
from tests.broker.server.desk import login
from tests.certificates import Certificates
from tests.patience import PATIENCE_MS, PATIENCE_S
from tests.processes import running
from tests.warm import Copy, WarmLbg

OPTIONS = {
    "solace.messaging.service.vpn-name": "default",
    "solace.messaging.authentication.scheme.basic.username": "user",
    "solace.messaging.authentication.scheme.basic.password": "password",
}
COMMAND = [sys.executable, "-m", "lbg_runtime.cli", "broker"]


class Starting(Protocol):
    """Starts a broker: its process and its ready line; killed at the end if it is still there."""

    def __call__(self, *options: str) -> AbstractContextManager[tuple[Copy, str]]: ...


@pytest.fixture
def broker(lbg: WarmLbg, tmp_path: Path) -> Starting:
    @contextmanager
    def start(*options: str) -> Iterator[tuple[Copy, str]]:
        with lbg.running(tmp_path, "broker", *options, stderr=subprocess.PIPE) as process:
            assert process.stderr is not None
            yield process, process.stderr.readline()

    return start


def replayed_twice(url: str) -> list[str]:
    """What two receivers of a queue are replayed, one after the other, of one message."""
    service = MessagingService.builder().from_properties({**OPTIONS, "solace.messaging.transport.host": url}).build()
    service.connect()
    builder = service.create_persistent_message_receiver_builder().with_message_auto_acknowledgement()
    builder = builder.with_missing_resources_creation_strategy(MissingResourcesCreationStrategy.CREATE_ON_START)
    builder = builder.with_message_replay(ReplayStrategy.all_messages())
    found = []
    try:
        publisher = service.create_persistent_message_publisher_builder().build().start()
        publisher.publish_await_acknowledgement("once", Topic.of("replayed/a"), PATIENCE_MS)
        for _ in range(2):
            receiver = builder.with_subscriptions([TopicSubscription.of("replayed/>")]).build(
                Queue.durable_exclusive_queue("replayed")
            )
            message = receiver.start().receive_message(PATIENCE_MS)
            found.append(message.get_payload_as_string())
            receiver.terminate(100)
    finally:
        service.disconnect()
    return found


@pytest.mark.real_time
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_when_it_is_ready_and_leaves_when_asked(number: signal.Signals) -> None:
    with running([*COMMAND, "--smf", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True) as process:
        start, _, port = process.stderr.readline().rpartition(":")
        assert start == "lbg broker ready: smf 127.0.0.1"
        with socket.create_connection(("127.0.0.1", int(port)), PATIENCE_S):
            process.send_signal(number)
            assert process.wait(PATIENCE_S) == 0


@pytest.mark.real_time
def test_an_address_that_is_told_can_be_given_to_clients(broker: Starting) -> None:
    with broker("--smf", "[::1]:0", "--semp", "[::1]:0") as (_, line):
        addresses = line.strip().removeprefix("lbg broker ready: ").split(", ")
        for name, address in (each.split(" ") for each in addresses):
            told = ListenAddress.parse(address)
            assert (name, told.host) in (("smf", "::1"), ("semp", "::1"))
            socket.create_connection((told.host, told.port), PATIENCE_S).close()


@pytest.mark.real_time
def test_the_management_api_is_served_where_it_is_asked_for(broker: Starting) -> None:
    with broker("--smf", "127.0.0.1:0", "--semp", "127.0.0.1:0") as (process, line):
        start, _, address = line.strip().rpartition(", semp ")
        assert start.startswith("lbg broker ready: smf 127.0.0.1:")
        url = f"http://{address}/SEMP/v2/config/msgVpns/default/queues"
        made = httpx.post(url, json={"queueName": "q"}, auth=("admin", "admin"), trust_env=False, timeout=PATIENCE_S)
        assert made.json()["data"]["queueName"] == "q"
        process.terminate()
        assert process.wait(PATIENCE_S) == 0


@pytest.mark.real_time
def test_what_administrators_have_stored_applies_also_where_no_management_api_is_served(
    broker: Starting, tmp_path: Path
) -> None:
    options = ("--smf", "127.0.0.1:0", "--store", str(tmp_path / "store"))
    with broker(*options, "--semp", "127.0.0.1:0") as (process, line):
        url = f"http://{line.strip().rpartition(' ')[2]}/SEMP/v2/config/msgVpns/default/clientUsernames"
        account = {"clientUsername": "user", "enabled": False}
        httpx.post(url, json=account, auth=("admin", "admin"), trust_env=False, timeout=PATIENCE_S).raise_for_status()
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    with broker(*options) as (_, line):
        host = {**OPTIONS, "solace.messaging.transport.host": f"tcp://{line.strip().rpartition(' ')[2]}"}
        service = MessagingService.builder().from_properties(host).build()
        with pytest.raises(PubSubPlusClientError, match="Client Username Is Shutdown"):
            service.connect()


@pytest.mark.real_time
async def test_clients_come_over_websocket_where_it_is_asked_for(broker: Starting) -> None:
    with broker("--smf", "127.0.0.1:0", "--web", "127.0.0.1:0") as (process, line):
        start, _, address = line.strip().rpartition(", web ")
        assert start.startswith("lbg broker ready: smf 127.0.0.1:")
        async with aiohttp.ClientSession() as session, session.ws_connect(f"ws://{address}") as client:
            await client.send_bytes(login("cl-1"))
            assert b"OK" in await client.receive_bytes(timeout=PATIENCE_S)
            process.terminate()
            assert (await client.receive(timeout=PATIENCE_S)).type in (WSMsgType.CLOSE, WSMsgType.CLOSED)
        assert process.wait(PATIENCE_S) == 0


@pytest.mark.real_time
def test_faults_are_ordered_where_it_is_asked_for(broker: Starting) -> None:
    with broker("--smf", "127.0.0.1:0", "--faults", "127.0.0.1:0") as (process, line):
        start, _, address = line.strip().rpartition(", faults ")
        assert start.startswith("lbg broker ready: smf 127.0.0.1:")
        assert httpx.get(f"http://{address}/", trust_env=False, timeout=PATIENCE_S).json() == {"clients": []}
        process.terminate()
        assert process.wait(PATIENCE_S) == 0


@pytest.mark.real_time
def test_a_replay_log_is_kept_where_it_is_asked_for(lbg: WarmLbg, broker: Starting, tmp_path: Path) -> None:
    ended = lbg(tmp_path, "broker", "--smf", "127.0.0.1:0", "--replay-log", "much")
    assert ended.returncode == 2
    assert "--replay-log: 'much'; expected a size such as 500M or 20G" in ended.stderr
    with broker("--smf", "127.0.0.1:0", "--replay-log", "1M") as (process, line):
        address = line.strip().rpartition(" ")[2]
        assert replayed_twice(f"tcp://{address}") == ["once", "once"]
        process.terminate()
        assert process.wait(PATIENCE_S) == 0


@pytest.mark.real_time
def test_faults_are_not_ordered_from_elsewhere(lbg: WarmLbg, tmp_path: Path) -> None:
    ended = lbg(tmp_path, "broker", "--smf", "127.0.0.1:0", "--faults", "0.0.0.0:0")
    assert ended.returncode == 2
    assert "--faults: 0.0.0.0:0; expected an address of this machine alone" in ended.stderr


@pytest.mark.real_time
def test_a_bad_address_of_the_management_api_is_named(lbg: WarmLbg, tmp_path: Path) -> None:
    for address, reason in (("8080", "--semp: '8080'"), ("192.0.2.1:0", "semp 192.0.2.1:0")):
        ended = lbg(tmp_path, "broker", "--smf", "127.0.0.1:0", "--semp", address)
        assert ended.returncode == 2
        assert ended.stderr.startswith(f"lbg: {reason}")


@pytest.mark.real_time
def test_a_bad_peer_is_logged_in_one_line_of_json(broker: Starting) -> None:
    with broker("--smf", "127.0.0.1:0") as (process, line):
        with socket.create_connection(("127.0.0.1", int(line.rpartition(":")[2])), PATIENCE_S) as peer:
            peer.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert peer.recv(100) == b""
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
        assert process.stderr is not None
        (logged,) = process.stderr.read().splitlines()
        assert '"event": "peer_dropped"' in logged


@pytest.mark.real_time
def test_it_leaves_with_its_parent() -> None:
    parent_code = (
        "import subprocess, sys, time;"
        f"subprocess.Popen({[*COMMAND, '--smf', '127.0.0.1:0', '--exit-with-parent']!r});"
        "time.sleep(600)"
    )
    # The pipe is the broker's standard error too, and ends when nobody holds it any more.
    with running([sys.executable, "-c", parent_code], stderr=subprocess.PIPE) as parent:
        assert parent.stderr is not None
        assert b"ready" in parent.stderr.readline()
        parent.kill()
        parent.wait(PATIENCE_S)
        deadline_s = time.monotonic() + PATIENCE_S
        ended = False
        while not ended and time.monotonic() < deadline_s:
            readable, _, _ = select.select([parent.stderr], [], [], 1)
            ended = bool(readable) and os.read(parent.stderr.fileno(), 100) == b""
        assert ended


@pytest.mark.real_time
@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:x", ":55555", "127.0.0.1:65536", "192.0.2.1:0"])
def test_a_bad_address_is_one_line_and_exit_code_2(lbg: WarmLbg, tmp_path: Path, address: str) -> None:
    ended = lbg(tmp_path, "broker", "--smf", address)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith("lbg: ")
    assert address in line


@pytest.mark.real_time
def test_a_port_in_use_is_one_line_and_exit_code_2(lbg: WarmLbg, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = lbg(tmp_path, "broker", "--smf", address)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line == f"lbg: smf {address}: Address already in use; expected an address of this machine with a free port"


@pytest.mark.real_time
def test_with_a_certificate_it_speaks_tls_alone(broker: Starting, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    files = certificates.broker()
    options = ("--tls-cert", str(files.certificate), "--tls-key", str(files.key))
    with broker("--smf", "127.0.0.1:0", "--semp", "127.0.0.1:0", *options) as (_, line):
        smf, semp = (int(part.rpartition(":")[2]) for part in line.strip().split(","))
        context = ssl.create_default_context(cafile=certificates.authority_file)
        for port in (smf, semp):
            with (
                socket.create_connection(("127.0.0.1", port), PATIENCE_S) as plain,
                context.wrap_socket(plain, server_hostname="localhost") as secured,
            ):
                assert secured.version() == "TLSv1.3"
        url = f"https://localhost:{semp}/SEMP/v2/config/about/user"
        assert (
            httpx.get(url, auth=("admin", "admin"), verify=context, trust_env=False, timeout=PATIENCE_S).status_code
            == 200
        )
        with pytest.raises(httpx.HTTPError):
            httpx.get(url.replace("https", "http"), auth=("admin", "admin"), trust_env=False)


@pytest.mark.real_time
def test_passwords_are_refused_where_certificates_are_asked_for_whatever_an_earlier_life_has_stored(
    broker: Starting, tmp_path: Path
) -> None:
    certificates = Certificates(tmp_path)
    files = certificates.broker(clients=True)
    context = ssl.create_default_context(cafile=certificates.authority_file)
    context.load_cert_chain(certificates.client("administrator"))
    options = ["--smf", "127.0.0.1:0", "--semp", "127.0.0.1:0", "--store", str(tmp_path / "store")]
    vpn = "{}://localhost:{}/SEMP/v2/config/msgVpns/default"
    with httpx.Client(auth=("admin", "admin"), verify=context, trust_env=False, timeout=PATIENCE_S) as http:
        with broker(*options) as (_, line):
            url = vpn.format("http", line.strip().rpartition(":")[2])
            http.patch(url, json={"authenticationBasicType": "internal"}).raise_for_status()
        options += ["--tls-cert", str(files.certificate), "--tls-key", str(files.key)]
        options += ["--client-ca", str(files.client_authorities)]
        with broker(*options) as (_, line):
            found = http.get(vpn.format("https", line.strip().rpartition(":")[2])).json()["data"]
    assert found["authenticationBasicType"] == "internal"
    assert (found["authenticationBasicEnabled"], found["authenticationClientCertEnabled"]) == (False, True)


def test_options_of_tls_belong_together() -> None:
    some = Path("some.pem")
    assert tls_files(None, None, None) is None
    assert tls_files(some, some, None) == TlsFiles(some, some)
    for given in ((some, None, None), (None, some, None), (None, None, some), (some, None, some)):
        with pytest.raises(UserError, match="--tls-cert and --tls-key"):
            tls_files(*given)
