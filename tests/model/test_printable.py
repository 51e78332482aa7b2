"""What others chose is one line that a terminal does not obey."""

import pytest

from lbg_runtime.model.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("account-4711 'a' \\ é 漢 😀", "account-4711 'a' \\ é 漢 😀"),
        ("a\nb\r\tc", "a\\nb\\r\\tc"),
        ("\x1b[31mred\x1b]0;title\x07", "\\x1b[31mred\\x1b]0;title\\x07"),
        ("\x9b2J\x7f\0", "\\x9b2J\\x7f\\x00"),
        ("\u202egnp.exe\u2028\ud800", "\\u202egnp.exe\\u2028\\ud800"),
        ("", ""),
    ],
)
def test_what_a_terminal_would_obey_is_written_out(text: str, shown: str) -> None:
    assert printable(text) == shown
