"""Deterministic simulation of members, broker and network from one seed, without an event loop.

The real flow machines, key lanes and broker engine; a virtual clock, modelled clients, handlers and faults; laws that are
checked on the history alone. `python -m lbg_runtime.sim --help` runs many seeds or replays one.
"""
