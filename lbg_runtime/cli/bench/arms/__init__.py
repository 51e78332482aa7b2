"""What the benches run in separate processes: brokers, members, clients; nothing else imports them at run time."""

import atexit
import gc

# As it ends, an interpreter looks through all that it has imported for garbage, which is a sixth of a short run.
atexit.register(gc.freeze)
