"""Which flow is fed next: the lines of flows at a queue, exclusive, non-exclusive, partitioned and by message group."""
