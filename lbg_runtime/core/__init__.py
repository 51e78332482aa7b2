"""Pure machines of a member: flow, rebind schedule, key lanes, roles. No waiting, no clock, no chance of their own."""
