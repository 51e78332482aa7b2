"""Running handlers: a pool of runners, attempts and their deadlines, and what is kept of a failure."""
