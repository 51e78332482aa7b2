"""Placeholder until the runtime's helper fills the room."""


class App:
    """The application."""
