"""What the installed client could have instead of what it has."""


class WithoutFunctions:
    """A library that has nothing but its name."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __getitem__(self, name: str) -> object:
        raise AttributeError(f"undefined symbol: {name}")
