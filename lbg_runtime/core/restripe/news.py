"""What a flow tells its member about a re-striping: facts that stay true, whatever becomes of the flow."""

from dataclasses import dataclass
from typing import assert_never

from lbg_runtime.core.restripe.records import StripePlan


@dataclass(frozen=True, slots=True)
class PlanReached:
    """The plan is in the queue, or was there and is settled."""

    plan: StripePlan


@dataclass(frozen=True, slots=True)
class ShardLeft:
    """Everything of the shard before its marker is settled, and the broker has processed the settlements."""

    plan: StripePlan
    shard: int


@dataclass(frozen=True, slots=True)
class StripesFinished:
    """Everything before the finish is settled, including the records, and the broker has processed the settlements."""

    generation: int
    from_count: int
    to_count: int


@dataclass(frozen=True, slots=True)
class StripesEnded:
    """The re-striping is over, in all queues."""

    generation: int
    to_count: int


StripesNews = PlanReached | ShardLeft | StripesFinished | StripesEnded


def facts_of(news: StripesNews) -> dict[str, str | int]:
    """The news as fields of a log line."""
    match news:
        case PlanReached(plan):
            return {"news": "planned", "generation": plan.generation, "from": plan.from_count, "to": plan.to_count}
        case ShardLeft(plan, shard):
            return {"news": "left", "generation": plan.generation, "shard": shard}
        case StripesFinished(generation, from_count, to_count):
            return {"news": "finished", "generation": generation, "from": from_count, "to": to_count}
        case StripesEnded(generation, to_count):
            return {"news": "ended", "generation": generation, "to": to_count}
        case _:
            assert_never(news)
