"""How the figures are made, that the application notices what is wrong, and that the whole thing ends well."""

import httpx
import pytest

from lbg_runtime.cli.bench.arms.sidecar_application import OrderedApplication
from lbg_runtime.cli.bench.sidecar import Arm, quantiles, ratios_of, rows_of, wrong_of
from tests.cli.bench.short_run import short_run

SHORT = ["--messages", "1000", "--duration", "1s", "--rate", "200", "--rounds", "1"]

RIGHT = Arm(sent=10, count=10, out_of_order=0, overlapping=0, per_s=1_000.0)


def test_quantiles_are_of_nearest_ranks_without_the_warm_up() -> None:
    assert quantiles([]) == {}
    assert quantiles([9.0] * 25 + list(range(1, 176))) == {"p50": 88, "p99": 174}


def test_an_arm_is_right_where_everything_came_once_and_in_order() -> None:
    assert RIGHT.is_right
    assert not Arm(10, 9, 0, 0, 1.0).is_right
    assert not Arm(10, 10, 1, 0, 1.0).is_right
    assert not Arm(10, 10, 0, 1, 1.0).is_right


def test_figures_compare_the_two_and_say_what_was_wrong() -> None:
    wrong = Arm(10, 11, 1, 0, 750.0)
    arms = {
        "bare_throughput": [RIGHT, RIGHT, Arm(10, 10, 0, 0, 9_000.0)],
        "sidecar_throughput": [wrong, RIGHT, Arm(10, 10, 0, 0, 7.0)],
        "bare_latency": [Arm(10, 10, 0, 0, 1.0, [1.0] * 10)] * 3,
        "sidecar_latency": [Arm(10, 10, 0, 0, 1.0, [each] * 10) for each in (1.5, 900.0, 1.1)],
    }
    found = {ratio.name: ratio for ratio in ratios_of(arms)}
    assert found["throughput, sidecar / bare client"].values == [0.75, 1.0, 7.0 / 9_000.0]
    assert found["throughput, sidecar / bare client"].is_met
    assert found["latency p50, sidecar / bare client"].values == [1.5, 900.0, 1.1]
    assert found["ms added at p50"].values == pytest.approx([0.5, 899.0, 0.1])
    assert found["ms added at p50"].is_met
    assert {(row.arm, row.unit) for row in rows_of(arms)} >= {
        ("bare_throughput", "messages/s"),
        ("bare_latency p99", "ms"),
    }
    assert wrong_of(arms) == ["sidecar_throughput: 31 of 30 handled, 1 out of order, 0 overlapping"]


def test_where_nothing_was_handled_there_is_no_latency_and_what_was_wrong_is_said() -> None:
    arms = {name: [RIGHT] for name in ("bare_throughput", "sidecar_throughput")}
    arms |= {"bare_latency": [Arm(10, 10, 0, 0, 1.0, [1.0] * 10)], "sidecar_latency": [Arm(10, 0, 0, 0, 1.0)]}
    assert {row.arm for row in rows_of(arms)} == {
        "bare_throughput", "sidecar_throughput", "bare_latency p50", "bare_latency p99",
    }  # fmt: skip
    assert [ratio.name for ratio in ratios_of(arms)] == ["throughput, sidecar / bare client"]
    assert wrong_of(arms) == ["sidecar_latency: 0 of 10 handled, 0 out of order, 0 overlapping"]


async def test_the_application_notices_what_is_out_of_order() -> None:
    transport = httpx.ASGITransport(OrderedApplication().application())
    async with httpx.AsyncClient(transport=transport, base_url="http://a") as client:
        for key, number in [("a", 1), ("b", 1), ("a", 2), ("a", 4), ("b", 1)]:
            headers = {"lbg-key": key, "lbg-fencing-token": str(number)}
            assert (await client.post("/orders", content=b"{}", headers=headers)).status_code == 200
        told = (await client.post("/report")).json()
        assert (told["count"], told["out_of_order"], told["overlapping"]) == (5, 2, 0)
        assert (await client.get("/look")).json()["count"] == 0


@pytest.mark.real_time
@pytest.mark.end_to_end
def test_a_short_run_is_right_and_has_figures() -> None:
    result = short_run("sidecar", *SHORT)
    assert {arm["handled"] for arm in result["details"]["checked"].values()} == {1000, 200}
    assert {ratio["name"].split(",")[0] for ratio in result["ratios"]} == {
        "throughput", "latency p50", "latency p99", "ms added at p50",
    }  # fmt: skip
