"""`lbg demo`: the source article's story with real processes, played and judged."""
