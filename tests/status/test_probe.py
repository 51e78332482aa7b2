"""The probe of a container's health check, against a real server of a member."""

import asyncio
import os
import socket
import sys
import threading

import pytest

from lbg_runtime.config.listen_address import ListenAddress
from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.status.probe import probe
from lbg_runtime.status.server import StatusServer
from tests.status.asking import ShownMember, flow, member

pytestmark = pytest.mark.real_time

WELL = member(flow(0, FlowState.ACTIVE))
NOT_READY = member(flow(0, FlowState.BINDING))


async def probed(url: str) -> tuple[int, str]:
    """As an engine runs it, with a proxy in the environment that must not be asked."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "lbg_runtime.status.probe", url,
        stdout=asyncio.subprocess.PIPE, env={**os.environ, "http_proxy": "http://127.0.0.1:1", "no_proxy": ""},
    )  # fmt: skip
    said, _ = await process.communicate()
    return process.returncode or 0, said.decode()


async def test_a_member_that_says_yes_is_well_and_one_that_says_no_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    # A process may begin and end within the time for which an answer is given again.
    monkeypatch.setattr("lbg_runtime.status.shared.KEPT_S", 0)
    async with StatusServer(ListenAddress("127.0.0.1", 0), "a-token") as server:
        server.show(ShownMember(WELL))
        assert await probed(f"http://{server.address}/livez") == (0, '{"live":true}\n')
        assert await probed(f"http://{server.address}/readyz") == (0, '{"ready":true}\n')
        server.show(ShownMember(NOT_READY))
        assert await probed(f"http://{server.address}/livez") == (0, '{"live":true}\n')
        assert await probed(f"http://{server.address}/readyz") == (1, '{"ready":false}\n')
        assert (await probed(f"http://{server.address}/v1/status"))[0] == 1


def test_nobody_there_is_not_well() -> None:
    with socket.socket() as bound_only:
        # Bound and not listening: nobody else can have the port, and nobody answers.
        bound_only.bind(("127.0.0.1", 0))
        port = bound_only.getsockname()[1]
        is_well, said = probe(f"http://127.0.0.1:{port}/livez")
    assert not is_well
    assert f"127.0.0.1:{port}" in said


@pytest.mark.parametrize("url", ["nonsense", "", "file:///etc/hostname", "http://["])
def test_what_is_no_address_is_not_well(url: str) -> None:
    assert probe(url)[0] is False


@pytest.mark.parametrize("said", [b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"])
def test_what_is_no_web_server_is_not_well(said: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1_000)
                connection.sendall(said)

        answering = threading.Thread(target=answer)
        answering.start()
        assert probe(f"http://127.0.0.1:{listener.getsockname()[1]}/livez")[0] is False
        answering.join()
