"""Records on disk: JSON lines written by members and publishers, read back as Arrow tables for the validator."""
