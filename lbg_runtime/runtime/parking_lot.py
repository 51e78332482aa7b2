"""All parking queues of a member: made with its flows, and created or checked at its start."""

import structlog

from lbg_runtime.config.settings import Provision, Settings
from lbg_runtime.core.chance import RandomSource
from lbg_runtime.core.flow.events import FlowInactive
from lbg_runtime.core.parking.records import parking_queue
from lbg_runtime.core.restripe.striping import StripingBook
from lbg_runtime.model.errors import ConfigError, RequestRefused
from lbg_runtime.model.ids import MemberId, QueueName
from lbg_runtime.runtime.dispatch.dispatcher import Dispatcher
from lbg_runtime.runtime.flow.runner import FlowRunner
from lbg_runtime.runtime.parking.parked_queue import ParkedQueue
from lbg_runtime.runtime.parking.ports import ParkingPorts
from lbg_runtime.runtime.provisioning import provision_queue, refusal_of
from lbg_runtime.runtime.session import Session

_log = structlog.get_logger(__name__)

_ASKED_FOR = "then: park"
"""What an error names as the cause. Not the setting `failure.then`, as a handler alone may ask for parking."""


class ParkingLot:
    """One per member with a handler that may park; on its loop."""

    def __init__(
        self,
        session: Session,
        settings: Settings,
        member: MemberId,
        chance: RandomSource,
        dispatcher: Dispatcher,
        striping: StripingBook,
    ) -> None:
        self._session = session
        self._settings = settings
        self._member = member
        self._chance = chance
        self._dispatcher = dispatcher
        self._striping = striping

    async def prepare(self) -> None:
        """Make sure that the parking queues exist, and create them if members may. Raises `ConfigError` if one is
        missing.

        Nothing tells a client whether such a queue has its subscription. If not, the member's own fence does not come,
        and the log says so.
        """
        group = self._settings.group
        for index in range(group.queue_count):
            queue = parking_queue(group.name, index)
            if group.provision is Provision.CREATE_MISSING:
                try:
                    await provision_queue(self._session, queue, [queue])
                except RequestRefused as error:
                    expected = "a user who may create queues, or parking queues made beforehand"
                    raise ConfigError(_ASKED_FOR, str(error), expected) from error
            elif (refusal := await refusal_of(self._session, queue)) is not None:
                if refusal.permanent:
                    found, expected = f"{queue}: {refusal.reason}", f"a queue that may be bound, subscribed to {queue}"
                    raise ConfigError(_ASKED_FOR, found, expected)
                _log.warning("parking_queue_not_looked_at", parking=queue, reason=refusal.reason)

    def make(self, queue_index: int, queue: QueueName) -> ParkedQueue:
        """Make the `ParkedQueue` of one queue of the group, to be connected to its flow runner."""
        parked = ParkedQueue(parking_queue(self._settings.group.name, queue_index), self._chance)
        self._dispatcher.park_in(queue, parked)
        return parked

    def connect(self, parked: ParkedQueue, runner: FlowRunner) -> None:
        """Connect a parked queue to the flow runner that was made with it."""
        parked.connect(
            ParkingPorts(
                queue=runner.machine.queue,
                session=self._session,
                member=self._member,
                dispatch=runner.replay,
                return_unstarted=lambda queue, epoch, keeps_moved: self._dispatcher.return_unstarted(
                    queue, epoch, keeps_moved=keeps_moved
                ),
                flush=runner.flush,
                lost=lambda epoch: runner.post(FlowInactive(epoch)),
                replayed=lambda handling, is_settled: runner.replayed(handling, is_settled=is_settled),
                ended=runner.replay_ended,
                is_restriping=lambda: self._striping.now.target is not None,
                patience_s=self._settings.rebind.drain_timeout_ms / 1_000,
            )
        )
