from lbg_runtime.broker.engine.rates import Rates, Traffic

NOTHING = Rates(Traffic(), Traffic())


def test_rates_are_those_of_the_second_and_the_minute_before(stage):
    now_s = 1_000.0
    stage.engine.surroundings.wall_s = lambda: now_s
    _, flow = stage.consumer("ann")
    sent = stage.ids(stage.open(flow, window=20) + stage.publish(30, size_bytes=8))
    assert stage.queue.rates == NOTHING, "the second is not over"

    now_s = 1_001.999
    assert stage.queue.rates == Rates(Traffic(30, 240, 20, 160), Traffic(0, 4, 0, 3))
    # Sent again counts again; what is put back and what is settled does not count.
    stage.publish(60)
    stage.engine.unbind(flow)
    _, flow = stage.consumer("bob")
    stage.open(flow, window=255)
    assert len(sent) == 20

    now_s = 1_002.0
    assert stage.queue.rates == Rates(Traffic(60, 60, 90, 300), Traffic(2, 5, 2, 8))
    now_s = 1_003.0
    assert stage.queue.rates == Rates(Traffic(), Traffic(2, 5, 2, 8))
    now_s = 1_060.999
    assert stage.queue.rates.average == Traffic(2, 5, 2, 8)
    now_s = 1_061.0
    assert stage.queue.rates.average == Traffic(1, 1, 2, 5), "the first second is more than a minute ago"
    now_s = 1_062.0
    assert stage.queue.rates == NOTHING


def test_an_average_is_of_no_more_than_a_minute(stage):
    now_s = 1_000.0
    stage.engine.surroundings.wall_s = lambda: now_s
    for _ in range(200):
        stage.publish(6)
        now_s += 1
    assert stage.queue.rates == Rates(Traffic(6, 6, 0, 0), Traffic(6, 6, 0, 0))
    now_s += 30
    assert stage.queue.rates == Rates(Traffic(), Traffic(3, 3, 0, 0))


def test_a_clock_that_is_set_back_begins_the_rates_anew(stage):
    now_s = 5_000
    stage.engine.surroundings.wall_s = lambda: now_s
    stage.publish(60)
    now_s = 1_000
    assert stage.queue.rates == NOTHING
    stage.publish(120)
    now_s = 1_001
    assert stage.queue.rates == Rates(Traffic(120, 120, 0, 0), Traffic(2, 2, 0, 0))
