"""Secrets in settings: the text itself, or `file:` and the path of a file that holds it."""

from pathlib import Path

FILE_PREFIX = "file:"


def read_secret(value: object) -> object:
    """The secret that a setting names; one line end at the end of a file is not part of it. Raises `ValueError`."""
    if not isinstance(value, str) or not value.startswith(FILE_PREFIX):
        return value
    path = value.removeprefix(FILE_PREFIX)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"a readable file at {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"text in UTF-8 in the file {path}") from None
    except ValueError:
        raise ValueError(f"a readable file, which {path!r} cannot name") from None
    return text.removesuffix("\n").removesuffix("\r")
