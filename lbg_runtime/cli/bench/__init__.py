"""`lbg bench`: figures that the documents quote, measured on this machine."""
