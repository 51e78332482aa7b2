"""The fast receive and publish paths, below the client's public API, and the checks that allow or refuse them."""
