"""The sidecar: messages go to an application in another process, over HTTP, in key order; it publishes the same way.

To the runtime it is a handler like any other (`sidecar.py`): lanes, retries, settlement and drain are the runtime's.
`event.py`, `answer.py`, `subscriptions.py`, `bulk.py`, `health.py`, `pulling.py` and `publication.py` are pure.
"""
