"""Identifiers, distinguished by type so that none is passed where another is meant."""

from typing import NewType

GroupName = NewType("GroupName", str)
MemberId = NewType("MemberId", str)
QueueName = NewType("QueueName", str)

Epoch = NewType("Epoch", int)
"""Counts the flow handles that one member bound on one queue, from 1. A settlement belongs to its epoch (law L4)."""

DeliveryId = NewType("DeliveryId", int)
"""The broker's number of one delivery on one flow; increasing on a flow, meaningless on another."""
