"""The development broker: a pure engine and the servers in front of it. For development and tests, never production."""
