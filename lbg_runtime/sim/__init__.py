"""Deterministic simulation of members and engine from one seed; no event loop, no clock."""
