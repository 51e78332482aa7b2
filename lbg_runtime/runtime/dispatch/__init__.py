"""From an admitted delivery to its end: lanes, retries, the error queue, and what is known of each key."""
