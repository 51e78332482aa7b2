"""`lbg bench`: the figures that the documents quote, measured on this machine."""
