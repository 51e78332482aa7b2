"""One flow of a member: the machine of its handles, and what it is told and orders."""
