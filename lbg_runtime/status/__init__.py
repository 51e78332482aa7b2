"""The status API of a member: how it stands, over HTTP. Reads and changes nothing; nothing of a member waits for it."""
