"""Pure machines of a member: flow, rebind schedule, key lanes, roles. They do not wait, read a clock or roll dice."""
