"""What answers mean: Dapr's contract, and everything that an application may answer instead."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.sidecar.answer import Answer, Status, read_answer, read_bulk_answer

JSON = "application/json"


@pytest.mark.parametrize(
    "body", [b"", b" \n", b"{}", b'{"status": "SUCCESS"}', b"null", b'{"status": ""}', b'{"ok": true}', b"[1]"]
)
def test_what_says_nothing_else_is_a_success(body):
    assert read_answer(200, JSON, body).status is Status.SUCCESS
    assert read_answer(204, "", body).status is Status.SUCCESS


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b'{"status": "RETRY"}', Status.RETRY, "status RETRY"),
        (b'{"status": "DROP"}', Status.DROP, "status DROP"),
        (b'{"status": "success"}', Status.RETRY, "unknown status 'success'; expected SUCCESS, RETRY or DROP"),
        (b'{"status": 1}', Status.RETRY, "unknown status 1; expected SUCCESS, RETRY or DROP"),
        (b"{broken", Status.RETRY, "HTTP 200 with a body that is no JSON"),
        (b"\xff\xfe", Status.RETRY, "HTTP 200 with a body that is no JSON"),
        (None, Status.RETRY, "HTTP 200 with a body of more than 1 MB"),
    ],
)
def test_a_status_is_followed_and_what_cannot_be_read_is_tried_again(body, status, reason):
    assert read_answer(200, JSON, body) == Answer(status, reason)


def test_a_text_that_says_that_it_is_one_is_a_success():
    assert read_answer(200, "text/plain; charset=utf-8", b"OK").status is Status.SUCCESS
    assert read_answer(200, "text/html", b'{"status": "RETRY"}').status is Status.RETRY


SAYS_RETRY = json.dumps({"status": "RETRY"})


@pytest.mark.parametrize(
    "body",
    [
        b"\xef\xbb\xbf" + SAYS_RETRY.encode(),
        b" \n" + SAYS_RETRY.encode()[:-4],
        gzip.compress(SAYS_RETRY.encode()),
        SAYS_RETRY.encode("utf-16"),
        SAYS_RETRY.encode("utf-16-be"),
    ],
    ids=["with a byte order mark", "cut short", "compressed", "UTF-16", "UTF-16 without a mark"],
)
def test_a_text_that_asks_for_a_retry_in_a_way_that_is_not_read_is_no_success(body):
    """A server on HTTP/1.0 that dies has written a part of its answer, and nothing shows that it is one."""
    assert read_answer(200, "text/html; charset=utf-8", body).status is Status.RETRY


def test_a_byte_order_mark_changes_nothing():
    mark = b"\xef\xbb\xbf"
    for body in (b"", b"OK", b"{}", b'{"status": "SUCCESS"}'):
        assert read_answer(200, "text/html", mark + body).status is Status.SUCCESS
    statuses = {"statuses": [{"entryId": "1", "status": "SUCCESS"}]}
    assert read_bulk_answer(200, mark + json.dumps(statuses).encode(), ["1"])["1"].status is Status.SUCCESS


@pytest.mark.parametrize("body", ["OK", "Größe", "\tdone\r\n", "<p>{}</p>"])
def test_other_texts_are_a_success(body):
    for encoding in ("utf-8", "latin-1"):
        assert read_answer(200, "text/plain", body.encode(encoding)).status is Status.SUCCESS


@pytest.mark.parametrize("name", ["Status", "STATUS", "status"])
def test_the_names_of_an_answer_may_be_in_any_letters_as_in_dapr(name):
    assert read_answer(200, JSON, json.dumps({name: "RETRY"}).encode()).status is Status.RETRY
    assert read_answer(200, JSON, json.dumps({name: "DROP"}).encode()).status is Status.DROP
    statuses = {"Statuses": [{"EntryId": "1", name: "DROP"}]}
    assert read_bulk_answer(200, json.dumps(statuses).encode(), ["1"])["1"].status is Status.DROP


@pytest.mark.parametrize("names", [("status", "Status"), ("Status", "status")])
def test_of_a_status_in_several_letters_that_in_small_ones_counts(names):
    told = {"status": "RETRY", "Status": "SUCCESS"}
    assert read_answer(200, JSON, json.dumps({name: told[name] for name in names}).encode()).status is Status.RETRY


@pytest.mark.parametrize("body", [b'{"status": null, "Status": "RETRY"}', b'{"Status": "RETRY", "status": null}'])
def test_a_null_beside_a_status_in_other_letters_says_nothing(body):
    """It was taken for a success, and the event was lost that the application wanted again."""
    assert read_answer(200, JSON, body).status is Status.RETRY


def test_bytes_that_do_not_say_what_they_are_are_tried_again():
    answer = read_answer(200, "", b"OK")
    assert answer == Answer(Status.RETRY, "HTTP 200 with a body that is neither empty nor JSON (type '')")


@pytest.mark.parametrize("kind", ["text/html", JSON, ""])
def test_what_is_too_long_to_be_read_is_no_success(kind):
    too_long = Answer(Status.RETRY, "HTTP 200 with a body of more than 1 MB")
    assert read_answer(200, kind, None) == too_long
    assert read_bulk_answer(200, None, ["1"]) == {"1": too_long}


@pytest.mark.parametrize("code", [301, 400, 401, 403, 405, 413, 429, 500, 503])
def test_other_codes_are_tried_again(code):
    assert read_answer(code, JSON, b'{"status": "SUCCESS"}') == Answer(Status.RETRY, f"HTTP {code}")


def test_not_found_is_dropped():
    assert read_answer(404, JSON, b"") == Answer(Status.DROP, "HTTP 404")


def bulk(statuses, code=200):
    body = statuses if isinstance(statuses, bytes) else json.dumps({"statuses": statuses}).encode()
    return {entry: answer.status for entry, answer in read_bulk_answer(code, body, ["1", "2", "3"]).items()}


def test_each_entry_of_a_bulk_has_its_own_status():
    statuses = [{"entryId": "3", "status": "DROP"}, {"entryId": "1", "status": "SUCCESS"}]
    assert bulk(statuses) == {"1": Status.SUCCESS, "2": Status.RETRY, "3": Status.DROP}


@pytest.mark.parametrize(
    "statuses",
    [
        b"",
        b"{}",
        b"null",
        b"[]",
        b"{broken",
        [{"entryId": "1", "status": ""}],
        [{"entryId": "1", "status": "DONE"}],
        [{"entryId": 1, "status": "SUCCESS"}],
        [{"status": "SUCCESS"}],
        ["1"],
        [{"entryId": "1", "status": "SUCCESS"}, {"entryId": "1", "status": "RETRY"}],
        [{"entryId": "4", "status": "SUCCESS"}],
    ],
)
def test_an_entry_without_a_clear_status_is_tried_again(statuses):
    assert bulk(statuses)["1"] is Status.RETRY


def test_the_code_of_a_bulk_is_that_of_all_its_entries():
    assert set(bulk([], 404).values()) == {Status.DROP}
    assert set(bulk([{"entryId": "1", "status": "SUCCESS"}], 500).values()) == {Status.RETRY}


@pytest.mark.parametrize(("code", "is_success"), [(199, False), (200, True), (299, True), (300, False)])
def test_a_code_from_200_to_299_is_a_success(code, is_success):
    expected = Status.SUCCESS if is_success else Status.RETRY
    assert read_answer(code, "", b"").status is expected
    assert bulk([{"entryId": "1", "status": "SUCCESS"}], code)["1"] is expected


@given(st.integers(100, 599), st.text(), st.one_of(st.none(), st.binary()))
def test_every_answer_means_something(code, content_type, body):
    assert read_answer(code, content_type, body).status in Status
    assert read_bulk_answer(code, body, ["1"]).keys() == {"1"}
