"""The replay log, and replays from it."""
