"""`lbg group`: its commands, their plans and their texts."""
