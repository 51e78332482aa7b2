"""The hashed publisher: key to shard, stamps, confirms, ledger."""
