"""What the benches run in separate processes: brokers, members, clients; nothing else imports them at run time."""
