"""`lbg group restripe`: changes the number of queues while publishers and members go on."""

import sys
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from lbg_runtime.cli.options import Config, Json, complain, group_settings, print_json
from lbg_runtime.model.counted import counted
from lbg_runtime.model.errors import QueueUnfit, SempError, TransportError, UserError

if TYPE_CHECKING:
    from lbg_runtime.config.settings import Settings
    from lbg_runtime.runtime.restripe.restriper import Progress


def restripe(
    queues: Annotated[int, typer.Option(help="New number of queues.")],
    config: Config = Path("config.yaml"),
    json: Json = False,
) -> None:
    """Change the number of queues of a running group. Nothing is lost, and keys keep their order.

    Shards move one at a time, and only the shard that moves pauses, for a moment. If the command is interrupted or
    killed, run it again to continue; until then, a shard that was just moving waits. Exit code 1 if the broker refuses.
    """
    import uvloop

    from lbg_runtime.config.settings import GroupSource

    settings = group_settings(config)
    if not 1 <= queues <= settings.group.hash_count:
        expected = f"1 to {settings.group.hash_count}, which is the number of shards"
        raise UserError("--queues", str(queues), expected)
    began = monotonic()
    teller = _Teller(began)
    try:
        done = uvloop.run(_restripe(settings, queues, teller))
    except KeyboardInterrupt:
        if teller.has_told:
            # Before that, nothing is changed.
            complain("interrupted, and a shard may wait until the same command has ended: run it again to continue")
        raise
    except QueueUnfit as error:
        # The plan leaves other queues alone, and limits.
        is_in_plan = error.queue in settings.group.shape().queue_names() and not error.is_limit
        shown = "; `lbg group plan` shows what differs from the settings, `lbg group apply` mends it"
        more = shown if is_in_plan else ""
        complain(f"{error}{more}")
        raise typer.Exit(1) from error
    except (SempError, TransportError) as error:
        more = "; run the same command again to continue" if teller.has_told else ""
        complain(f"{error}{more}")
        raise typer.Exit(1) from error
    seconds = round(monotonic() - began, 1)
    before, moved = (done.plan.from_count, done.moving) if done is not None else (queues, 0)
    if json:
        told = {"group": settings.group.name, "from": before, "to": queues, "moved": moved, "seconds": seconds}
        print_json(told)
        return
    if done is None:
        how = "there is nothing to do"
    elif before == queues:
        how = "members that went by another number know it now"
    else:
        how = f"{counted(moved, 'shard')} moved in {seconds} s"
    print(f"{settings.group.name} has {counted(queues, 'queue')}: {how}")
    if settings.group.queue_count != queues and settings.group.source is GroupSource.FILE:
        print(f"now set group.queue_count to {queues} in the settings, for members that start from now on")


class _Teller:
    """Reports progress on standard error: each shard that has moved, and whatever is waited for, once."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._told: tuple[int, str] | None = None

    @property
    def has_told(self) -> bool:
        """Whether there was anything to report, as there is before the first step."""
        return self._told is not None

    def __call__(self, progress: "Progress") -> None:
        now = (progress.moved, progress.waiting_for)
        if now == self._told:
            return
        self._told = now
        waiting = f", waiting for {progress.waiting_for}" if progress.waiting_for else ""
        seconds = f"{monotonic() - self._began:6.1f} s"
        print(f"{seconds}  {progress.moved} of {progress.moving} shards moved{waiting}", file=sys.stderr)


async def _restripe(settings: "Settings", queues: int, on_progress: _Teller) -> "Progress | None":
    from lbg_runtime.runtime.restripe.restriper import open_restriper

    async with open_restriper(settings, queues, on_progress) as restriper:
        return await restriper.run()
