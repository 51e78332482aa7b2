"""A real group on loopback: its processes, and what their journals say while they run."""
