"""Placeholder until the runtime's helper fills the room."""


class Handlers:
    """Registered handlers."""
