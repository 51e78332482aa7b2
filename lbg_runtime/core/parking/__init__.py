"""Keys set aside with their messages: what a parking queue contains, and what its owner decides from it. Pure."""
