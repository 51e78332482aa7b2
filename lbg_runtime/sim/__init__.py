"""Deterministic simulation of members, broker and network from one seed, without an event loop.

The flow, membership and rebalance machines, the key lanes and the broker engine are the real ones; clocks, network,
clients, handlers, publishers and faults are modelled. The laws are checked on the history alone. `lbg simulate` runs
many seeds, or replays one.
"""
