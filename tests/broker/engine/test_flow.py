from lbg_runtime.broker.engine.flow import Window


def test_a_window_starts_closed_and_holds_its_size():
    window = Window(0)
    assert window.room <= 0
    window.move(0, 3)
    assert [window.send([4]), window.send([5, 6])] == [0, 4]
    assert (window.room, window.used) == (0, 3)
    window.move(4, 3)
    assert (window.room, window.used) == (1, 2)
    assert window.send([7]) == 6


def test_an_old_or_unknown_acknowledgement_changes_only_the_size():
    window = Window(0)
    window.move(0, 3)
    window.send([4, 6, 8])
    window.move(6, 3)
    window.move(4, 1)

    assert window.room <= 0
    assert (window.received_up_to, window.size) == (6, 1)


def test_the_last_received_id_can_only_be_one_that_was_sent_and_not_overtaken():
    window = Window(2)
    window.move(2, 10)
    assert window.has_been_received(2)
    window.send([4, 6, 8])
    window.move(4, 10)

    assert [id_ for id_ in range(10) if window.has_been_received(id_)] == [4, 6, 8]


def test_a_client_that_starts_over_has_the_whole_window_and_was_sent_nothing_before():
    window = Window(2)
    window.move(2, 3)
    window.begin_anew()
    assert (window.received_up_to, window.room) == (2, 3)
    window.send([4, 6, 8])
    window.begin_anew()
    assert (window.received_up_to, window.room, window.under_way) == (8, 3, ())
    assert [window.send([9]), window.send([10])] == [0, 9]
