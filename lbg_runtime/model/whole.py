"""Whole numbers in texts of others."""


def whole_number(text: str, digits: int) -> int | None:
    """The number that the text is, written with at most so many digits and nothing else; None if it is none.

    `int` alone takes more, such as signs, blanks and digits of other scripts, and refuses thousands of digits.
    """
    return int(text) if len(text) <= digits and text.isascii() and text.isdecimal() else None
