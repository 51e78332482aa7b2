"""Sans-I/O codec of the broker protocol: bytes in, values out, and back. Knows no broker and no socket."""
