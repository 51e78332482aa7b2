"""The plots of the advice as SVG: plain marks with titles on hover; colours by class, so that the page sets them."""

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from itertools import groupby

import numpy as np

from lbg_runtime.model.printable import printable
from lbg_runtime.pipeline.advise.analysis import Advice
from lbg_runtime.pipeline.advise.timeline import Timeline

WIDTH = 960
LEFT, RIGHT, TOP, BOTTOM = 88, 16, 10, 30
"""At the left there is room for `100,000,000` and for `100,000 ms`."""
DIGIT = 7.0
"""Width of a digit of a label, rounded up."""
COLOURS = 8
"""Members beyond this number share one."""
LEVELS = 4
"""Steps in the heat map for how much was handled."""


def heat_map(timeline: Timeline, queue_count: int) -> str:
    """Shards by queue from top to bottom, time from left to right; the colour is who handled, its strength how much."""
    shards, slices = timeline.owner.shape
    row = max(2.0, min(14.0, 420 / shards))
    gap = 3.0
    column = (WIDTH - LEFT - RIGHT) / slices
    height = TOP + row * shards + gap * (queue_count - 1) + BOTTOM
    found = timeline.messages[timeline.messages > 0]
    edges = np.quantile(found, [level / LEVELS for level in range(1, LEVELS)]) if len(found) else np.zeros(LEVELS - 1)
    levels = np.searchsorted(edges, timeline.messages, side="left")
    marks, labels = [], []
    y = TOP - gap
    least_label = -math.inf
    for place, shard in enumerate(sorted(range(shards), key=lambda shard: (shard % queue_count, shard))):
        if place == 0 or shard < queue_count:
            y += gap
            if y - least_label >= 12:
                labels.append(_text(LEFT - 8, y + min(12.0, row + 4), f"queue {shard % queue_count}", "end"))
                least_label = y
        cells = [(int(timeline.owner[shard, at]), int(levels[shard, at])) for at in range(slices)]
        at = 0
        for (owner, level), group in groupby(cells):
            length = sum(1 for _ in group)
            if owner >= 0:
                count = int(timeline.messages[shard, at : at + length].sum())
                place_and_time = f"queue {shard % queue_count}, shard {shard}, {_clock(timeline, at)}"
                text = f"{place_and_time}: {count} messages by {printable(timeline.members[owner])}"
                marks.append(
                    f'<rect class="{member_class(owner)} v{level + 1}" x="{LEFT + at * column:.1f}" '
                    f'y="{y:.1f}" width="{length * column + 0.15:.1f}" height="{row * 0.9:.1f}">'
                    f"<title>{escape(text)}</title></rect>"
                )
            at += length
        y += row
    return _svg(height, [*marks, *labels, *_time_axis(timeline, height)], "Who handled which shard, and when")


def latency(timeline: Timeline) -> str:
    """Three percentiles of the time from receipt to the end of handling."""
    lines = (("p99", timeline.p99_ms), ("p95", timeline.p95_ms), ("p50", timeline.p50_ms))
    found = [value for _, values in lines for value in values if value is not None]
    height = 260.0
    scale = _LogScale(min(found), max(found), height)
    column = (WIDTH - LEFT - RIGHT) / len(timeline.p50_ms)
    marks = list(scale.grid())
    for name, values in lines:
        points = [(LEFT + (at + 0.5) * column, value) for at, value in enumerate(values)]
        for is_there, group in groupby(points, key=lambda point: point[1] is not None):
            if is_there:
                path = " ".join(f"{x:.1f},{scale.y(value or 0):.1f}" for x, value in group)
                # A single point would not be seen as a line.
                x, _, y = path.rpartition(" ")[2].partition(",")
                marks.append(
                    f'<polyline class="line {name}" points="{path}"/>'
                    if " " in path
                    else f'<circle class="dot {name}" cx="{x}" cy="{y}" r="2.5"/>'
                )
    for at, (p50, p95, p99) in enumerate(zip(timeline.p50_ms, timeline.p95_ms, timeline.p99_ms, strict=True)):
        if p50 is not None:
            text = f"{_clock(timeline, at)}: p50 {p50:.1f} ms, p95 {p95:.1f} ms, p99 {p99:.1f} ms"
            marks.append(
                f'<rect class="hover" x="{LEFT + at * column:.1f}" y="{TOP}" width="{column:.1f}" '
                f'height="{height - TOP - BOTTOM}"><title>{escape(text)}</title></rect>'
            )
    return _svg(height, [*marks, *_time_axis(timeline, height)], "Time from receipt to the end of handling")


def queue_bars(messages: Sequence[int]) -> str:
    """Messages per queue, and their mean."""
    height = 240.0
    scale = _Scale(max((*messages, 1)), height)
    slot = (WIDTH - LEFT - RIGHT) / len(messages)
    bar = min(44.0, slot * 0.72)
    mean = sum(messages) / len(messages)
    marks = list(scale.grid())
    for queue, count in enumerate(messages):
        x = LEFT + (queue + 0.5) * slot
        share = f", {count / mean:.2f} of the mean" if mean else ""
        marks.append(
            f'<path class="bar" d="{_rounded_bar(x - bar / 2, scale.y(count), bar, scale.y(0))}">'
            f"<title>queue {queue}: {count} messages{share}</title></path>"
        )
    marks += _axis(height, ((LEFT + (queue + 0.5) * slot, str(queue)) for queue in range(len(messages))))
    y = scale.y(mean)
    marks.append(f'<line class="mean" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
    return _svg(height, marks, "Messages of each queue")


def cut_lines(advice: Advice) -> str:
    """How many queues the load can keep busy, by the number of queues; one line for each hash count."""
    height = 300.0
    counts = sorted({cut.queue_count for cut in advice.cuts})
    largest = max(counts)
    reached = max(*(cut.busy_queues for cut in advice.cuts), min(advice.useful_queues, largest))
    scale = _Scale(reached, height)
    width = WIDTH - LEFT - RIGHT
    least = min(counts)

    def x_of(queue_count: float) -> float:
        return LEFT + 12 + (queue_count - least) / max(1, largest - least) * (width - 24)

    marks = list(scale.grid())
    ideal = min(float(largest), scale.top)
    # With a hot key all of it may lie above what is shown.
    if ideal >= least:
        marks.append(
            f'<line class="ideal" x1="{x_of(least):.1f}" y1="{scale.y(least):.1f}" x2="{x_of(ideal):.1f}" '
            f'y2="{scale.y(ideal):.1f}"><title>if every queue had the same load</title></line>'
        )
    if shows_useful_queues(advice):
        y = scale.y(advice.useful_queues)
        marks.append(f'<line class="mean" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
    for number, hash_count in enumerate(hash_counts_of(advice)):
        line = [cut for cut in advice.cuts if cut.hash_count == hash_count]
        path = " ".join(f"{x_of(cut.queue_count):.1f},{scale.y(cut.busy_queues):.1f}" for cut in line)
        marks.append(f'<polyline class="line s{number % COLOURS}" points="{path}"/>')
        marks += [
            f'<circle class="dot s{number % COLOURS}" cx="{x_of(cut.queue_count):.1f}" '
            f'cy="{scale.y(cut.busy_queues):.1f}" r="{6 if cut == advice.best else 3}">'
            f"<title>{cut.queue_count} queues, {hash_count} shards: keeps {cut.busy_queues:.1f} busy; the busiest has "
            f"{cut.queues.max_over_mean:.2f} times its share</title></circle>"
            for cut in line
        ]
    marks += _axis(height, ((x_of(count), str(count)) for count in counts))
    best = advice.best
    marks.append(
        f'<circle class="ring" cx="{x_of(best.queue_count):.1f}" cy="{scale.y(best.busy_queues):.1f}" r="9">'
        f"<title>recommended: {best.queue_count} queues, {best.hash_count} shards</title></circle>"
    )
    return _svg(height, marks, "Queues that can be busy, by the number of queues")


def shows_useful_queues(advice: Advice) -> bool:
    """Whether `cut_lines` has a line for them."""
    counts = [cut.queue_count for cut in advice.cuts]
    return min(counts) <= advice.useful_queues <= max(counts)


def hash_counts_of(advice: Advice) -> list[int]:
    """The hash counts of the cuts, in the order of their colours."""
    return sorted({cut.hash_count for cut in advice.cuts})


def member_class(place: int) -> str:
    return f"s{place}" if place < COLOURS else "s-other"


class _Scale:
    """A scale of values from 0 up, from bottom to top."""

    def __init__(self, largest: float, height: float) -> None:
        self._height = height
        self._step = _round_step(largest)
        self.top = self._step * max(1, math.ceil(largest / self._step - 1e-9))

    def y(self, value: float) -> float:
        span = self._height - TOP - BOTTOM
        return TOP + span * (1 - value / self.top)

    def grid(self) -> Iterator[str]:
        for number in range(round(self.top / self._step) + 1):
            value = number * self._step
            yield from _grid_line(self.y(value), f"{value:,.10g}")


class _LogScale:
    """A scale of milliseconds above 0, from bottom to top, from one power of ten to another."""

    def __init__(self, smallest: float, largest: float, height: float) -> None:
        self._height = height
        self._low = math.floor(math.log10(max(smallest, 0.001)))
        self._high = max(self._low + 1, math.ceil(math.log10(max(largest, 0.001))))

    def y(self, value: float) -> float:
        span = self._height - TOP - BOTTOM
        part = (math.log10(max(value, 10.0**self._low)) - self._low) / (self._high - self._low)
        return TOP + span * (1 - part)

    def grid(self) -> Iterator[str]:
        for power in range(self._low, self._high + 1):
            yield from _grid_line(self.y(10.0**power), f"{10.0**power:,.10g} ms")


def _grid_line(y: float, text: str) -> Iterator[str]:
    yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    yield _text(LEFT - 8, y + 4, text, "end")


def _round_step(largest: float) -> float:
    """One, two or five times a power of ten, with about five steps to the largest value."""
    raw = max(largest, 1e-9) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))


def _time_axis(timeline: Timeline, height: float) -> Iterator[str]:
    slices = len(timeline.p50_ms)
    column = (WIDTH - LEFT - RIGHT) / slices
    moments = [round(number * slices / min(7, slices)) for number in range(min(7, slices))]
    yield from _axis(height, ((LEFT + at * column, _clock(timeline, at)) for at in moments))


def _axis(height: float, labels: Iterable[tuple[float, str]]) -> Iterator[str]:
    """Labels below a plot, from left to right, without those for which there is no room."""
    free_from = -math.inf
    for x, text in labels:
        half = len(text) * DIGIT / 2
        if x - half >= free_from:
            yield _text(x, height - 8, text, "middle")
            free_from = x + half + DIGIT


def _clock(timeline: Timeline, at: int) -> str:
    moment = datetime.fromtimestamp((timeline.begin_us + at * timeline.slice_us) / 1e6, UTC)
    return moment.strftime("%H:%M:%S") if timeline.slice_us >= 500_000 else moment.strftime("%H:%M:%S.%f")[:-5]


def _rounded_bar(x: float, y: float, width: float, base: float) -> str:
    radius = min(4.0, width / 2, max(0.0, base - y))
    return (
        f"M{x:.1f},{base:.1f} V{y + radius:.1f} Q{x:.1f},{y:.1f} {x + radius:.1f},{y:.1f} H{x + width - radius:.1f} "
        f"Q{x + width:.1f},{y:.1f} {x + width:.1f},{y + radius:.1f} V{base:.1f} Z"
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(height: float, marks: Sequence[str], title: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">{"".join(marks)}</svg>'
