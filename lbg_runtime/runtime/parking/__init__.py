"""Keys set aside with their successors: a stay at the parking queue, and the view of it from outside."""
