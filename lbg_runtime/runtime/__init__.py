"""The async shell of a member: app, supervisor, flow runner, dispatcher, journal, shutdown."""
