"""SEMPv2 of the development broker: what an administrator sees and sets, and the engine does."""
