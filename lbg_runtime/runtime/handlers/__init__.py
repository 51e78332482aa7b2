"""What the user writes, and how it is called: registration, routes, parameters, batches, receipts, hooks."""
