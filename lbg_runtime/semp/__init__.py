"""Client of SEMPv2, the management API of PubSub+ and of the development broker."""
