"""`lbg demo`: a group of real processes whose members come, crash and leave under load, shown and judged."""
