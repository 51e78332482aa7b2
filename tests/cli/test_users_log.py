"""A module of handlers that sets structlog up in its own way: what fails in there fails nobody."""

import logging
from types import SimpleNamespace

import pytest
import structlog

from lbg_runtime.cli.users_log import users_log


class Kept(list):
    msg = list.append
    info = list.append


def broken(*_, **__):
    raise BrokenPipeError(32, "Broken pipe")


@pytest.fixture
def ours():
    """What is written as the log was set up before."""
    before, kept = structlog.get_config(), Kept()
    structlog.configure(processors=[structlog.processors.KeyValueRenderer()], logger_factory=lambda *_: kept)
    yield kept
    structlog.configure(**before)


def say(**setup):
    """What is said once it was set up anew."""
    with users_log():
        structlog.configure(**setup)
    structlog.get_logger().info("key_parked", key="k")


@pytest.mark.parametrize("render", [lambda *said: said[2]["key"], lambda *said: said[2]["key"].encode()])
def test_a_line_that_cannot_be_written_is_written_where_it_was_before(ours, render):
    say(processors=[render], logger_factory=lambda *_: SimpleNamespace(info=broken))
    assert ours == ["k"]


def test_a_line_that_cannot_be_made_is_written_as_before(ours):
    theirs = Kept()
    say(processors=[broken], logger_factory=lambda *_: theirs)
    assert (ours, theirs) == (["key='k' event='key_parked'"], [])


def test_a_line_that_goes_well_is_written_in_their_way_alone(ours):
    theirs = Kept()
    say(processors=[lambda *said: said[2]["event"]], logger_factory=lambda *_: theirs)
    assert (ours, theirs) == ([], ["key_parked"])


def test_a_line_that_they_drop_is_dropped(ours):
    def drop(*_):
        raise structlog.DropEvent

    say(processors=[drop])
    assert ours == []


def test_loggers_of_the_standard_library_are_what_they_were(ours, caplog):
    with caplog.at_level(logging.INFO):
        say(
            processors=[
                structlog.stdlib.filter_by_level,
                structlog.stdlib.add_logger_name,
                structlog.processors.JSONRenderer(),
            ],
            logger_factory=structlog.stdlib.LoggerFactory(),
            wrapper_class=structlog.stdlib.BoundLogger,
        )
    assert (ours, "key_parked" in caplog.text) == ([], True)


def test_a_log_that_nobody_sets_up_anew_stays_as_it_is(ours):
    before = structlog.get_config()
    with users_log():
        pass
    assert structlog.get_config() == before
