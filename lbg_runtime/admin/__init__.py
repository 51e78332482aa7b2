"""Administering a group: its queues now, and everything it needs from its creation to its end, over SEMP."""
