"""Keys set aside with their messages: what a parking queue says, and what its owner decides by it. Pure."""
