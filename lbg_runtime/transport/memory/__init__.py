"""Transport straight on the engine, in one process: for tests."""
