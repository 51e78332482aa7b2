"""A pool of threads that have all been started before the first call is given to them."""

import threading
from concurrent.futures import ThreadPoolExecutor


def started_threads(count: int, name_prefix: str) -> ThreadPoolExecutor:
    """A pool whose threads are running; raises `RuntimeError`, leaving no thread behind, if the system refuses one.

    Python's pool starts its threads one by one as calls come, and queues a call before it starts a thread for it. If
    the system refuses that thread, the caller gets an error although another thread makes the call later.
    """
    pool = ThreadPoolExecutor(count, thread_name_prefix=name_prefix)
    are_all_there = threading.Event()
    try:
        for _ in range(count):
            # Each keeps its thread occupied, so that the next one needs another.
            pool.submit(are_all_there.wait)
    except RuntimeError:
        pool.shutdown(wait=False)
        raise
    finally:
        are_all_there.set()
    return pool
