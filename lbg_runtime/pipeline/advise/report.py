"""The advice as one object, as text, and as a page that needs nothing else."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from html import escape
from importlib.resources import files
from string import Template

from lbg_runtime.model.printable import printable
from lbg_runtime.pipeline.advise.analysis import Advice
from lbg_runtime.pipeline.advise.charts import (
    COLOURS,
    cut_lines,
    hash_counts_of,
    heat_map,
    latency,
    member_class,
    queue_bars,
    shows_useful_queues,
)
from lbg_runtime.pipeline.advise.skew import Cut


def as_object(advice: Advice) -> dict[str, object]:
    """The object for `--json`, without the time line, which the page shows."""
    p50, p95, p99 = advice.timeline.overall_ms
    return {
        "group": advice.group,
        "hash_count": advice.hash_count,
        "queue_count": advice.queue_count,
        "hash_function": advice.function.value,
        "messages": advice.messages,
        "without_key": advice.without_key,
        "keys": advice.keys,
        "useful_queues": advice.useful_queues,
        "shards": {**asdict(advice.shards), "messages": list(advice.shard_messages)},
        "queues": {**asdict(advice.queues), "messages": list(advice.queue_messages)},
        "latency_ms": {"p50": p50, "p95": p95, "p99": p99},
        "hot_keys": [asdict(each) for each in advice.hot_keys],
        "members": [asdict(each) for each in advice.members],
        "now": _cut_object(advice.now),
        "recommended": _cut_object(advice.best),
        "cuts": [_cut_object(cut) for cut in advice.cuts],
        "recommendations": list(advice.recommendations),
    }


def as_text(advice: Advice) -> str:
    """The text for people at a terminal."""
    lines = [
        f"{advice.messages} messages of {advice.keys} keys in group {advice.group}: {advice.queue_count} queues, "
        f"{advice.hash_count} shards, {advice.function.value}",
        f"queues: the busiest has {advice.queues.max_over_mean:.2f} times its share, Gini {advice.queues.gini:.3f}; "
        f"shards: {advice.shards.max_over_mean:.2f} times, Gini {advice.shards.gini:.3f}",
        "hot keys: "
        + ", ".join(
            f"{each.key} {each.share:.1%}, {each.busy_share:.1%} of the time (shard {each.shard})"
            for each in advice.hot_keys[:5]
        ),
        f"useful queues: {advice.useful_queues} at most",
        *advice.recommendations,
    ]
    return "\n".join(map(printable, lines))


def as_page(advice: Advice) -> str:
    """A single HTML document that contains its styles and plots."""
    timeline = advice.timeline
    p50, p95, p99 = timeline.overall_ms
    run_s = timeline.slice_us * len(timeline.p50_ms) / 1e6
    tiles = (
        (f"{advice.messages:,}", "messages"),
        (f"{advice.keys:,}", "keys"),
        (f"{advice.now.busy_queues:.1f} of {advice.queue_count}", "queues kept busy"),
        (f"{advice.useful_queues:,}", "queues of use at most"),
        (f"{advice.queues.max_over_mean:.2f} x", "busiest queue over mean"),
        (f"{p99:,.1f} ms", "p99, receipt to end"),
    )
    template = Template(files("lbg_runtime.pipeline.advise").joinpath("page.html").read_text())
    return template.substitute(
        title=_shown(f"How group {advice.group} is cut"),
        lead=escape(
            f"{advice.queue_count} queues, {advice.hash_count} shards, {advice.function.value}; {run_s:,.0f} s of "
            f"records, p50 {p50:,.1f} ms, p95 {p95:,.1f} ms. Times are UTC."
        ),
        tiles="".join(f'<div class="tile"><b>{value}</b><span>{escape(name)}</span></div>' for value, name in tiles),
        said="".join(f"<li>{_shown(each)}</li>" for each in advice.recommendations),
        colours=_colours(),
        members_legend=_members_legend(timeline.members),
        heat_map=heat_map(timeline, advice.queue_count),
        latency=latency(timeline),
        queues_note=escape(
            f"Messages that were handled. Gini {advice.queues.gini:.3f} over queues, {advice.shards.gini:.3f} over "
            "shards (0: all the same)."
        ),
        queues_mean=f"{sum(advice.queue_messages) / len(advice.queue_messages):,.0f}",
        queues=queue_bars(advice.queue_messages),
        hash_legend="".join(
            f'<span><i style="background:var(--s{number % COLOURS})"></i>{count} shards</span>'
            for number, count in enumerate(hash_counts_of(advice))
        ),
        useful_legend=f'<span><i class="dash"></i>the hottest key allows {advice.useful_queues}</span>'
        if shows_useful_queues(advice)
        else "",
        cuts=cut_lines(advice),
        cuts_table=_cuts_table(advice),
        hot_keys=_table(
            ("key", "shard", "queue", "messages", "of all", "of handling time"),
            (
                (
                    _shown(each.key),
                    each.shard,
                    each.queue,
                    f"{each.messages:,}",
                    _meter(each.share),
                    f"{each.busy_share:.1%}",
                )
                for each in advice.hot_keys
            ),
        ),
        members=_table(
            ("member", "messages", "handlers at a time", "queues it handled", ""),
            (
                (
                    _shown(each.member),
                    f"{each.messages:,}",
                    f"{each.busy:.2f}",
                    each.queues,
                    "never bound" if not each.was_bound else "idle" if each.is_idle else "",
                )
                for each in advice.members
            ),
        ),
        foot=escape(
            f"{advice.without_key:,} messages without a key are in the counts of members and times, and in no cut."
            if advice.without_key
            else "Every message had a key."
        ),
    )


def _shown(text: str) -> str:
    """Text of others as HTML: its tags are no tags, and what turns the direction of text or cannot be seen is told."""
    return escape(printable(text))


def _cut_object(cut: Cut) -> dict[str, object]:
    return {
        "hash_count": cut.hash_count,
        "queue_count": cut.queue_count,
        "busy_queues": round(cut.busy_queues, 3),
        "queues_max_over_mean": round(cut.queues.max_over_mean, 4),
        "queues_gini": round(cut.queues.gini, 4),
        "shards_max_over_mean": round(cut.shards.max_over_mean, 4),
        "shards_gini": round(cut.shards.gini, 4),
        "even": cut.is_even,
    }


def _colours() -> str:
    names = [*(f"s{number}" for number in range(COLOURS)), "s-other"]
    found = []
    for name in names:
        colour = f"var(--{name})" if name != "s-other" else "var(--other)"
        found.append(f"rect.{name}, .dot.{name} {{ fill: {colour}; }} .line.{name} {{ stroke: {colour}; }}")
    return "\n".join(found)


def _members_legend(members: Sequence[str]) -> str:
    shown = [
        f'<span><i style="background:var(--{member_class(place)})"></i>{_shown(name)}</span>'
        for place, name in enumerate(members[:COLOURS])
    ]
    others = len(members) - COLOURS
    if others > 0:
        shown.append(f'<span><i style="background:var(--other)"></i>{others} other{"s" if others > 1 else ""}</span>')
    return "".join(shown)


def _cuts_table(advice: Advice) -> str:
    rows = (
        (
            f"{cut.hash_count} shards",
            cut.queue_count,
            f"{cut.busy_queues:.1f}",
            f"{cut.queues.max_over_mean:.2f}",
            f"{cut.queues.gini:.3f}",
            f"{cut.shards.max_over_mean:.2f}",
            "" if cut.is_even else "uneven",
        )
        for cut in advice.cuts
    )
    best = next(number for number, cut in enumerate(advice.cuts) if cut == advice.best)
    heads = ("hash count", "queues", "kept busy", "busiest queue / mean", "Gini of queues", "busiest shard / mean", "")
    return _table(heads, rows, best)


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]], best: int | None = None) -> str:
    """Cells are HTML."""
    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    body = "".join(
        f"<tr{' class=best' if number == best else ''}>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>"
        for number, row in enumerate(rows)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _meter(share: float) -> str:
    return f'<span class="meter"><i style="width:{min(1.0, share):.1%}"></i></span>{share:.1%}'
