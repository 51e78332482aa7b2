"""Front end of the development broker: real clients on loopback TCP, one session each, all on one engine."""
