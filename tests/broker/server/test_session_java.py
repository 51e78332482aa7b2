"""What the vendor's Java client sends otherwise than its C library, in frames as they came."""

from lbg_runtime.smf.assured_items import ItemKind, Items, decode_assured
from lbg_runtime.smf.frame import Frame, Protocol
from lbg_runtime.smf.response import OK, Response, response_of
from lbg_runtime.smf.transactions import TransactionKind
from tests.broker.server.desk import Desk, answers, bind, item, open_flow, published

ACK_OF_ALL = bytes.fromhex(
    "030900010000000c00000034 01300a 860600000002 820a0000000000000005 8303ff 8512 0000000000000001 0000000000000005"
)
"""Of flow 2, where 1 to 5 came: in the oldest version, as all of its acknowledgements."""

OPEN_TRANSACTED = bytes.fromhex("0309000100000010 00000024 23000006 030b00000014 970300 9a0a0000000000000001 00")
OPEN_TRANSACTED_FLOW = bytes.fromhex(
    """
    0309000100000010 00000038 23000008 030000000028 980600000001 0a0300 810a0000000000000000 820a0000000000000000
    8303ff 0000
    """
)
COMMIT = bytes.fromhex(
    """
    131300010000002600000052 9816235032502f41444354524c504153535448525500 23000009
    030b0000002c 970302 980600000001 9a0a0000000100000002 9c12 00000002 00000002 0000000000000002 00
    """
)
"""Of transaction 1, which published two messages, or says so."""
ROLLBACK = bytes.fromhex(
    """
    131300010000002600000042 9816235032502f41444354524c504153535448525500 2300000a
    030b0000001c 970303 980600000001 9a0a0000000200000003 000000
    """
)
CLOSE_TRANSACTED = bytes.fromhex("030900010000000c 0000001c 030b00000010 970301 980600000001 00")


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


def test_a_transacted_session_is_new_and_its_answers_repeat_what_was_asked() -> None:
    desk = Desk()
    desk.create_queue("q")
    session = desk.log_in()
    open_flow(session)

    def ask(request: bytes) -> Frame:
        session.receive(request)
        (answer,) = answers(session)
        return answer

    opened = ask(OPEN_TRANSACTED)
    assert Items(decode_assured(opened.body).items).value(ItemKind.TRANSACTED_SESSION_STATE) == b"\0"
    flow = item(ask(OPEN_TRANSACTED_FLOW), ItemKind.FLOW_ID)
    session.receive(published(flow, 1, "#P2P/QUE/q") + published(flow, 2, "#P2P/QUE/q"))
    committed, again, rolled_back, closed = map(ask, (COMMIT, COMMIT, ROLLBACK, CLOSE_TRANSACTED))
    assert desk.depth("q") == 2
    assert [(response_of(answer), item(answer, ItemKind.TRANSACTION_REQUEST)) for answer in (committed, again)] == [
        (OK, TransactionKind.COMMIT),
        (Response(503, "Transaction Failure"), TransactionKind.ROLLBACK),
    ]
    assert item(rolled_back, ItemKind.TRANSACTION_REQUEST) == TransactionKind.ROLLBACK
    assert item(closed, ItemKind.TRANSACTION_REQUEST) == TransactionKind.CLOSE
