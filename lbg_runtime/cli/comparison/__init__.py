"""The ways to spread a keyed stream over members, side by side: what `lbg compare` is made of."""
