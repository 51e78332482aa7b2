"""Deterministic simulation of members, broker and network from one seed, without an event loop.

The flow machines, the key lanes and the broker engine are the real ones; clock, network, clients, handlers, publishers
and faults are modelled. The laws are checked on the history alone. `python -m lbg_runtime.sim` runs many seeds, or
replays one.
"""
