"""Threads that are all there before the first call is given to them."""

import threading
from concurrent.futures import ThreadPoolExecutor


def started_threads(count: int, name_prefix: str) -> ThreadPoolExecutor:
    """A pool whose threads run; raises `RuntimeError`, with none of them left, if the system refuses one.

    Python's pool starts them one by one, as calls come, and queues a call before it starts the thread for it. If that
    is refused, the caller is told that the call was not begun, and another thread makes it later.
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
