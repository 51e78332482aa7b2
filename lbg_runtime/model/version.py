"""Which code this is."""

VERSION = "0.2.0"
"""Written here, and not looked up in the installed package: an editable installation keeps the number that the code had
when it was installed. Every change that an operator must know of gets a new number."""
