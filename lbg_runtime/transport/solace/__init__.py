"""Transport on the official client; the only package that imports it."""
