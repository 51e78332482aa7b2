"""What the benches run in processes of their own: brokers, members, clients; nothing else imports them at run time."""
