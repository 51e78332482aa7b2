"""The status API of a member: how it stands, over HTTP. It only reads, and nothing in a member waits for it."""
