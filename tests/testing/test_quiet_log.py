import pytest
import structlog

from lbg_runtime.testing.quiet_log import quiet_log


def test_the_runtime_logs_errors_alone_and_others_as_ever(capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = structlog.get_logger("lbg_runtime.runtime.x"), structlog.get_logger("handlers.orders")
    with quiet_log():
        ours.info("ours_told")
        ours.warning("ours_warned", exc_info=ValueError())
        ours.error("ours_failed")
        theirs.info("theirs_told")
    shown = capsys.readouterr().out
    assert [word for word in shown.split() if "_" in word] == ["ours_failed", "theirs_told"]
    ours.info("ours_again")
    assert "ours_again" in capsys.readouterr().out


def test_a_log_that_the_user_has_set_up_is_his(capsys: pytest.CaptureFixture[str]) -> None:
    structlog.configure(processors=[structlog.processors.KeyValueRenderer()])
    with quiet_log():
        structlog.get_logger("lbg_runtime.runtime.x").info("told")
    assert "event='told'" in capsys.readouterr().out
    assert structlog.is_configured()
