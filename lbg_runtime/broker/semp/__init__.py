"""SEMPv2 of the development broker: what an administrator can see and set, and the engine does."""
