import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.model.errors import ProtocolError
from lbg_runtime.smf.smp import SubscriptionKind, SubscriptionRequest, decode_subscription, encode_subscription

topics = st.text(max_size=40).filter(lambda text: len(text.encode()) < 250)
own = st.builds(
    SubscriptionRequest,
    st.sampled_from([SubscriptionKind.ADD, SubscriptionKind.REMOVE]),
    st.integers(0, 255),
    topics,
    mark=st.integers(0, 1),
)
of_queues_and_others = st.builds(
    SubscriptionRequest,
    st.sampled_from([kind for kind in SubscriptionKind if kind > SubscriptionKind.REMOVE]),
    st.integers(0, 255),
    topics,
    topics,
    mark=st.integers(0, 1),
)


@given(request=own | of_queues_and_others)
def test_a_subscription_is_read_as_it_was_written(request: SubscriptionRequest) -> None:
    assert decode_subscription(encode_subscription(request)) == request


def test_a_client_says_whether_it_waits_for_an_answer() -> None:
    assert [SubscriptionRequest(SubscriptionKind.ADD, flags, "t").answer_wanted for flags in (0, 0xF7, 8, 0xFF)] == [
        False,
        False,
        True,
        True,
    ]


@given(kind=st.integers(0, 7), data=st.binary(max_size=40))
def test_any_bytes_are_a_subscription_or_a_protocol_error(kind: int, data: bytes) -> None:
    for raw in (data, bytes((0x80 | kind,)) + (5 + len(data)).to_bytes(4, "big") + data):
        try:
            decode_subscription(raw)
        except ProtocolError as error:
            assert error.what  # noqa: PT017  # which error it is depends on the bytes


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("80000000", "of 4 bytes"),
        ("80000000070c", r"7 bytes long and is 6 \(at byte 1\)"),
        ("8001000007 0c00", "16777223 bytes long and is 7"),
        ("86000000060c", "request 6"),
        ("80000000060c", "closing zero"),
        ("80000000070c61", "closing zero"),
        ("82000000060c", "cut short"),
        ("82000000080c0371", "longer than its subscription"),
        ("82000000090c027100", "cut short"),
        ("820000000d0c02710002740000", "bytes behind"),
    ],
)
def test_a_subscription_that_cannot_be_read_is_refused(body: str, what: str) -> None:
    with pytest.raises(ProtocolError, match=what):
        decode_subscription(bytes.fromhex(body))
