import pytest

from lbg_runtime.broker.engine.replay.log import AfterMessage, FromBeginning, FromTime
from lbg_runtime.broker.server.replay_start import replay_start
from lbg_runtime.model.errors import BrokerRefusal


@pytest.mark.parametrize(
    ("value", "start"),
    [
        # As the official client writes them.
        ("00", FromBeginning()),
        ("0118ea39d46de2e400", FromTime(0x18EA39D46DE2E400)),
        ("023477fa5ce52b0fe80000000000000001", AfterMessage(0x3477FA5CE52B0FE8, 1)),
    ],
)
def test_a_client_says_from_where(value, start):
    assert replay_start(bytes.fromhex(value)) == start


@pytest.mark.parametrize("value", ["", "03", "0000", "01", "01" + "00" * 9, "02" + "00" * 15])
def test_anything_else_is_refused(value):
    with pytest.raises(BrokerRefusal, match="403 Unknown Start Location Type"):
        replay_start(bytes.fromhex(value))
