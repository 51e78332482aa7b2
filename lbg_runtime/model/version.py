"""Which code this is."""

VERSION = "0.2.0"
"""Here, and not asked of what is installed: an installation that refers to a folder keeps the number that the code had
when that was made. Whatever an operator has to know of an update is worth a new one."""
