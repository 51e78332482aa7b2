"""The fast receive and publish paths, below the public API of the client, and the checks that allow or refuse them."""
