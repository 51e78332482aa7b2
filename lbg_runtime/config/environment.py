"""`${NAME}` and `${NAME:default}` in any text of the settings, replaced from the environment."""

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::([^}]*))?\}")


class UnsetVariable(ValueError):
    """The text names a variable that the environment does not have, and gives no default."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def interpolate(text: str, environ: Mapping[str, str]) -> str:
    """The text with its references replaced; references in their values are not. Raises `UnsetVariable`."""

    def replaced(match: re.Match[str]) -> str:
        name, default = match.groups()
        value = environ.get(name, default)
        if value is None:
            raise UnsetVariable(name)
        return value

    return _REFERENCE.sub(replaced, text)
