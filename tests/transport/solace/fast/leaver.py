"""A process whose interpreter ends while its transport is at work."""

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE

from lbg_runtime.broker.server.server import BrokerServer
from tests.patience import PATIENCE_S

WAYS = ("running", "left", "closed")
"""What has become of the event loop when the interpreter ends."""

_BEGIN = """
import asyncio, sys, time
from lbg_runtime.config.settings import ClientPathChoice
from lbg_runtime.core.flow.events import MessageReceived
from lbg_runtime.model.message import Message
from lbg_runtime.transport.solace.settings import SolaceSettings
from lbg_runtime.transport.solace.transport import SolaceTransport

async def main():
    settings = SolaceSettings(hosts=(sys.argv[1],), client_name="leaver", client_path=ClientPathChoice.FAST)
    transport = SolaceTransport(settings)
    await transport.open()
    await work(transport)
    return transport
"""

_LEAVE = """
how = sys.argv[2]
if how == "running":
    async def leave():
        await main()
        sys.exit(7)
    asyncio.run(leave())
loop = asyncio.new_event_loop()
transport = loop.run_until_complete(main())
if how == "closed":
    loop.close()
    time.sleep(0.2)
sys.exit(7)
"""


async def check_leaving(work: str, broker: BrokerServer, how: str) -> None:
    """Have a process leave in one of the `WAYS` after `async def work(transport)`: with its exit code, and silently."""
    address = broker.url
    command = (sys.executable, "-W", "ignore::ResourceWarning", "-c", _BEGIN + work + _LEAVE, address, how)
    process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
    try:
        async with asyncio.timeout(PATIENCE_S):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    assert (process.returncode, output, errors.decode()) == (7, b"", "")
