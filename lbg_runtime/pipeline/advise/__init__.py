"""What the journals of a run show about the cut of its group, and how another cut would have spread the same load."""
