"""What the journals of a run say of the cut of its group, and what another cut would have made of the same load."""
