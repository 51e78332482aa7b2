"""Who may ask, and what an answer says of itself, without a server."""

import pytest
from starlette.datastructures import Headers

from lbg_runtime.model.errors import UserError
from lbg_runtime.status.access import as_json, names_loopback, number_of, shows_token

TWICE = Headers(raw=[(b"authorization", b"Bearer token")] * 2)


@pytest.mark.parametrize(
    "hosts", [[], ["127.0.0.1", "127.0.0.1"], ["x127.0.0.1]"], ["[127.0.0.1x"], ["[127.0.0.1x:80"]]
)
def test_only_one_host_that_is_loopback_as_a_whole_names_it(hosts: list[str]) -> None:
    assert not names_loopback(hosts)
    assert names_loopback(["[::1]:80"])


def test_a_token_that_is_shown_twice_is_not_shown() -> None:
    assert shows_token(Headers(raw=TWICE.raw[:1]), b"token")
    assert not shows_token(TWICE, b"token")


def test_a_number_is_one_of_those_that_are_told() -> None:
    assert [number_of("limit", text, 1_000) for text in ("1", "0999", "1000")] == [1, 999, 1_000]
    for text in ("0", "1001", "00001", "", "-1", "1.0", "\N{ARABIC-INDIC DIGIT ONE}", "\N{SUPERSCRIPT TWO}"):
        with pytest.raises(UserError, match="a whole number from 1 to 1000"):
            number_of("limit", text, 1_000)


def test_an_answer_is_data_that_nobody_may_cache_or_take_for_anything_else() -> None:
    headers = as_json({}).headers
    told = {name: headers[name] for name in ("cache-control", "content-type", "x-content-type-options")}
    assert told == {
        "cache-control": "no-store",
        "content-type": "application/json",
        "x-content-type-options": "nosniff",
    }
