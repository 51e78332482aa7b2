"""Pure machines of a member: flows, group, re-striping, parking, lanes. They do not wait, read a clock or roll dice."""
