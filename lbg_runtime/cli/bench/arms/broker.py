"""What clients do to the broker that `broker` measures, in a process of its own, on plain sockets.

Reports what it took as one JSON line. Counts and order are checked here.
"""

import sys
from time import perf_counter, process_time

from lbg_runtime.cli.bench.arms.raw_client import (
    PAYLOAD_BYTES,
    WINDOW,
    RawClient,
    UnexpectedAnswer,
    delivery_id,
    direct_frame,
    is_message,
    message_frame,
    number_in,
    numbered,
    queue_name,
    topic_of,
)
from lbg_runtime.cli.lines import say
from lbg_runtime.cli.quantile import quantile

_AT_ONCE = 20_000
"""Frames made in advance; more would fill the memory and the processor's caches."""
_SETTLE_EVERY = 64


def publish(host: str, count: int, queues: int, size: int, window: int, *, bare: bool = False) -> dict[str, object]:
    """Publish to the queues in turn, with `window` messages under way; also measure how long each confirm took."""
    client = RawClient(host, None if bare else "publisher")
    flow = client.open_publisher()
    seconds = cpu_s = 0.0
    sent_at: list[float] = []
    waits_ms: list[float] = []
    for start in range(0, count, _AT_ONCE):
        numbers = range(start, min(count, start + _AT_ONCE))
        frames = [
            message_frame(flow, number + 1, topic_of(number % queues), numbered(number, size)) for number in numbers
        ]
        began_s, began_cpu_s = perf_counter(), process_time()
        sent = confirmed = start
        while confirmed < numbers.stop:
            room = min(confirmed + window, numbers.stop) - sent
            if room > 0:
                sent_at += [perf_counter()] * room
                client.send(b"".join(frames[sent - start : sent - start + room]))
                sent += room
            last = client.confirmed()
            now_s = perf_counter()
            waits_ms += [(now_s - at_s) * 1e3 for at_s in sent_at[confirmed:last]]
            confirmed = last
        seconds += perf_counter() - began_s
        cpu_s += process_time() - began_cpu_s
    client.close()
    return {
        "seconds": seconds,
        "cpu_s": cpu_s,
        "confirm_p50_ms": quantile(waits_ms, 0.5),
        "confirm_p99_ms": quantile(waits_ms, 0.99),
    }


def consume(host: str, count: int, *, bare: bool = False) -> dict[str, object]:
    """Take all messages of the first queue and settle them; each must come once and in order."""
    client = RawClient(host, None if bare else "consumer")
    flow = 1 if bare else client.bind_all([queue_name(0)])[0]
    began_s, began_cpu_s = perf_counter(), process_time()
    client.open_window(flow)
    taken = unsettled = first = 0
    while taken < count:
        last = 0
        for raw in client.frames():
            if not is_message(raw):
                continue
            if number_in(raw) != taken:
                raise UnexpectedAnswer(f"message {number_in(raw)} came, not {taken}")
            taken += 1
            last = delivery_id(raw)
            first = first or last
            unsettled += 1
            if unsettled >= _SETTLE_EVERY or taken == count:
                client.open_window(flow, last, (first, last))
                unsettled = first = 0
    spent = {"seconds": perf_counter() - began_s, "cpu_s": process_time() - began_cpu_s}
    client.close()
    return dict(spent)


def directly(host: str, count: int, subscriptions: int) -> dict[str, object]:
    """Send direct messages on `subscriptions` topics in turn to one client that subscribes to each of them, a window of
    them at a time; each must come once and in order."""
    sender, taker = RawClient(host, "sender"), RawClient(host, "taker")
    taker.subscribe(map(topic_of, range(subscriptions)))
    seconds = cpu_s = 0.0
    taken = 0
    for start in range(0, count, _AT_ONCE):
        numbers = range(start, min(count, start + _AT_ONCE))
        frames = [direct_frame(topic_of(number % subscriptions), numbered(number, PAYLOAD_BYTES)) for number in numbers]
        began_s, began_cpu_s = perf_counter(), process_time()
        for first in range(0, len(frames), WINDOW):
            some = frames[first : first + WINDOW]
            sender.send(b"".join(some))
            end = taken + len(some)
            while taken < end:
                for raw in taker.frames():
                    if number_in(raw) != taken:
                        raise UnexpectedAnswer(f"message {number_in(raw)} came, not {taken}")
                    taken += 1
        seconds += perf_counter() - began_s
        cpu_s += process_time() - began_cpu_s
    sender.close()
    taker.close()
    return {"seconds": seconds, "cpu_s": cpu_s}


def bind(host: str, queues: int, members: int) -> dict[str, object]:
    """Bind every queue from every member, one member after another; they stay bound until input ends."""
    names = [queue_name(queue) for queue in range(queues)]
    began_s, began_cpu_s = perf_counter(), process_time()
    clients = []
    for member in range(members):
        client = RawClient(host, f"member-{member}")
        flows = client.bind_all(names)
        if len(set(flows)) != queues:
            raise UnexpectedAnswer(f"{len(set(flows))} flows for {queues} binds")
        clients.append(client)
    spent = {"seconds": perf_counter() - began_s, "cpu_s": process_time() - began_cpu_s}
    for client in clients:
        client.close()
    return dict(spent)


def main(arm: str, host: str, *numbers: int) -> None:
    """Run an arm and report what it took."""
    match arm:
        case "in" | "stored in" | "bare in":
            spent = publish(host, numbers[0], numbers[1], PAYLOAD_BYTES, WINDOW, bare=arm == "bare in")
        case "one by one" | "stored one by one":
            spent = publish(host, numbers[0], 1, PAYLOAD_BYTES, 1)
        case "spool":
            spent = publish(host, numbers[0], 1, numbers[1], WINDOW)
        case "out" | "stored out" | "bare out":
            spent = consume(host, numbers[0], bare=arm == "bare out")
        case "directly":
            spent = directly(host, numbers[0], numbers[1])
        case "bind":
            spent = bind(host, numbers[0], numbers[1])
        case _:
            raise UnexpectedAnswer(f"there is no arm {arm!r}")
    say(spent)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
