import pytest
import structlog

from lbg_runtime.cli.log import configure_log


def fail_on(payload: str) -> None:
    raise ValueError(len(payload))


@pytest.mark.parametrize("as_json", [True, False])
def test_a_traceback_shows_no_local_variables(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    secret = "card 4111"
    configure_log(as_json=as_json)
    try:
        fail_on(secret)
    except ValueError as error:
        structlog.get_logger().warning("handling_failed", exc_info=error)
    finally:
        structlog.reset_defaults()
    logged = capsys.readouterr().err
    assert "handling_failed" in logged
    assert "ValueError" in logged
    assert secret not in logged
