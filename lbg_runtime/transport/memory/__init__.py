"""A transport directly on the engine, in one process; for tests."""
