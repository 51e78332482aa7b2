"""One flow of a member: the machine of its handles, its events and its commands."""
