"""How the figures of a poisoned key are made from the moments of two members."""

import pytest

from lbg_runtime.broker.engine.engine import DEFAULT_VPN, Engine
from lbg_runtime.broker.server.server import BrokerServer
from lbg_runtime.cli.bench.arms.poison import check_measured
from lbg_runtime.cli.bench.arms.poison_broker import fill, is_measured, unsettled
from lbg_runtime.cli.bench.arms.receive import WrongCourse
from lbg_runtime.cli.bench.poison import POLICIES, SAMPLE, NotTogether, rates_together, ratios_of


def test_only_what_two_members_did_at_the_same_time_is_compared() -> None:
    mine = [1.0 + 0.1 * number for number in range(21)]  # from 1 s to 3 s
    others = [2.0 + 0.05 * number for number in range(21)]  # from 2 s to 3 s, twice as fast
    rate, other = rates_together(mine, others)
    assert rate == pytest.approx(10 * SAMPLE, rel=0.11)
    assert other == pytest.approx(20 * SAMPLE, rel=0.11)


def test_two_that_were_hardly_at_work_together_are_not_compared() -> None:
    with pytest.raises(NotTogether, match="too busy"):
        rates_together([0.0, 1.0, 2.0], [1.9, 2.9, 3.9])


def test_ratios_are_those_of_a_pair_and_more_is_better() -> None:
    pair = {"rate": 90.0, "peer_rate": 100.0, "cpu_us": 20.0, "peer_cpu_us": 19.0, "failed": 3.0, "moved": 1.0}
    found = {ratio.name: ratio for ratio in ratios_of({arm: [pair] for arm in POLICIES})}
    assert found["park / no poison, rate"].values == [0.9]
    assert found["park / no poison, rate"].is_met is True
    assert found["park / no poison, 1 / processor time"].values == [0.95]
    assert found["no poison / no poison, rate"].is_met is None
    assert "stop / no poison, 1 / processor time" not in found


def test_with_stop_the_keys_of_other_queues_count() -> None:
    assert [key for key in range(9) if is_measured("park", key)] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [key for key in range(9) if is_measured("stop", key)] == [1, 2, 3, 5, 6, 7]


@pytest.mark.parametrize("arm", ["park", "stop"])
def test_every_arm_finds_out_what_is_lost_out_of_order_or_comes_twice(arm: str) -> None:
    right = [str(number) for number in range(40) if is_measured(arm, number % 9)]
    check_measured(arm, right, 40, 9)
    first, second = right.index("1"), right.index("10")
    out_of_order = list(right)
    out_of_order[first], out_of_order[second] = "10", "1"
    for wrong in (right[:-1], [*right, right[-1]], [*right[:-1], right[0]], out_of_order):
        with pytest.raises(WrongCourse):
            check_measured(arm, wrong, 40, 9)


@pytest.mark.real_time
async def test_what_lies_on_the_queues_is_counted_by_the_keys_that_count() -> None:
    engine = Engine("test")
    async with BrokerServer(port=0, engine=engine) as server:
        fill(server, 36, 9)
        assert engine.queue_names(DEFAULT_VPN)
        assert unsettled(engine, "park", 9) == 32
        assert unsettled(engine, "stop", 9) == 24
