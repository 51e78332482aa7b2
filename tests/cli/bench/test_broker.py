"""The plain client notices what is wrong, the ratios are of the same round, and a short run measures every arm."""

import socket
import threading

import pytest

from lbg_runtime.cli.bench import broker
from lbg_runtime.cli.bench.arms.measured_broker import ready_deliveries
from lbg_runtime.cli.bench.arms.raw_client import (
    RawClient,
    UnexpectedAnswer,
    delivery_id,
    is_message,
    message_frame,
    number_in,
    numbered,
)
from lbg_runtime.cli.bench.broker import QUEUE_COUNTS, SPREADS, ratios_of
from lbg_runtime.smf.frame import Protocol
from lbg_runtime.smf.message import read_published
from lbg_runtime.smf.response import Response, answer
from tests.cli.bench.short_run import short_run


def test_a_message_frame_is_what_a_broker_reads() -> None:
    published = read_published(message_frame(7, 12, "a/b", numbered(5, 100)))
    assert (published.topic, published.assured, published.flow_id, published.message_id) == ("a/b", True, 7, 12)
    assert published.relay.body == numbered(5, 100)


def test_a_delivery_tells_its_id_and_the_number_of_its_message() -> None:
    second = ready_deliveries(2)[1]
    assert (is_message(second), delivery_id(second), number_in(second)) == (True, 2, 1)


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"", "closed the connection"),
        (answer(Protocol.CLIENT_CTRL, b"", Response(401, "Unauthorized")), "Unauthorized"),
    ],
    ids=["nothing", "no"],
)
def test_a_broker_that_does_not_let_it_in_is_noticed(said: bytes, words: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(65_536)
                peer.sendall(said)

        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises(UnexpectedAnswer, match=words):
            RawClient(f"tcp://127.0.0.1:{listener.getsockname()[1]}", "client")
        thread.join()


def test_ratios_are_within_a_round_and_the_cost_is_by_few_queues() -> None:
    measured = {
        ("in", "messages/s"): [50.0, 60.0],
        ("bare in", "messages/s"): [100.0, 200.0],
        ("out", "messages/s"): [1.0, 1.0],
        ("bare out", "messages/s"): [1.0, 2.0],
        ("stored in", "messages/s"): [25.0, 45.0],
        ("stored out", "messages/s"): [0.5, 1.0],
        **{
            (f"{count} {spread}", "broker us/message"): values
            for spread in SPREADS
            for count, values in zip(QUEUE_COUNTS, ([10.0, 20.0], [11.0, 20.0], [20.0, 20.0]), strict=True)
        },
        ("spooled", "bytes/message"): [1500.0],
    }
    assert [list(ratio.values) for ratio in ratios_of(measured)] == [
        [0.5, 0.3],
        [0.5, 0.75],
        [0.5, 1.0],
        [1.0, 0.5],
        *[[1.1, 1.0], [2.0, 1.0]] * 3,
        [1.5],
    ]


@pytest.mark.real_time
@pytest.mark.end_to_end
def test_a_short_run_measures_every_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    # What ten thousand queues cost is a figure, and takes longer than all the rest.
    monkeypatch.setattr(broker, "QUEUE_COUNTS", (10, 100))
    options = ["--messages", "1000", "--spooled", "1000", "--queues", "20", "--members", "2", "--rounds", "1"]
    told = short_run("broker", *options)
    arms = {row["arm"] for row in told["rows"]}
    assert {"in", "bare in", "out", "bare out", "one by one", "spooled", "20 queues x 2 members"} <= arms
    assert {"stored in", "stored out", "stored one by one"} <= arms
    ratios = {ratio["name"] for ratio in told["ratios"]}
    assert {f"cost with 100 {spread} / with 10" for spread in SPREADS} <= ratios
