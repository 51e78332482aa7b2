"""Administers a group on the broker over SEMP: everything that it needs there, from its creation to its end."""
