"""What the vendor's Java client sends otherwise than its C library, in frames as they came."""

from lbg_runtime.smf.frame import Protocol
from tests.broker.server.desk import Desk, answers, bind, open_flow, published

ACK_OF_ALL = bytes.fromhex(
    "030900010000000c00000034 01300a 860600000002 820a0000000000000005 8303ff 8512 0000000000000001 0000000000000005"
)
"""Of flow 2, where 1 to 5 came: in the oldest version, as all of its acknowledgements."""


def test_acknowledgements_in_the_oldest_version_are_taken() -> None:
    desk = Desk()
    desk.create_queue("q")
    session = desk.log_in()
    publisher, _, _ = open_flow(session)
    assert bind(session, "q") == 2
    for number in range(1, 6):
        session.receive(published(publisher, number, "#P2P/QUE/q"))
    assert [frame.protocol for frame in answers(session)].count(Protocol.MESSAGE) == 5
    session.receive(ACK_OF_ALL)
    assert desk.depth("q") == 0
