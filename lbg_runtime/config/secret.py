"""Secrets in settings: the text itself, or `file:` and the path of a file that holds it."""

from contextlib import suppress
from pathlib import Path

from pydantic import SecretStr

from lbg_runtime.config.regular_file import read_regular_file

FILE_PREFIX = "file:"


class SecretOfFile(SecretStr):
    """A secret as it was read from a file, which may be replaced when the secret is."""

    def __init__(self, text: str, path: str) -> None:
        super().__init__(text)
        self.path = path


def newest(secret: SecretStr) -> SecretStr:
    """The secret as its file has it now; the one given if it is from no file, or if none can be read there now."""
    if isinstance(secret, SecretOfFile):
        with suppress(ValueError):
            return SecretOfFile(_text_of(secret.path), secret.path)
    return secret


def read_secret(value: object) -> object:
    """The secret that a setting names; one line end at the end of a file is not part of it, nor a byte order mark.

    Raises `ValueError`, also for a file with nothing else in it.
    """
    if not isinstance(value, str) or not value.startswith(FILE_PREFIX):
        return value
    path = value.removeprefix(FILE_PREFIX)
    return SecretOfFile(_text_of(path), path)


def _text_of(path: str) -> str:
    try:
        text = read_regular_file(Path(path)).decode()
    except OSError as error:
        raise ValueError(f"a readable file at {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"text in UTF-8 in the file {path}") from None
    except ValueError:
        raise ValueError(f"a readable file, which {path!r} cannot name") from None
    secret = text.removeprefix("\ufeff").removesuffix("\n").removesuffix("\r")
    if not secret:
        # The file is being replaced, or was never filled. For no password, the setting is left out.
        raise ValueError(f"a secret in the file {path}, which is empty")
    return secret
