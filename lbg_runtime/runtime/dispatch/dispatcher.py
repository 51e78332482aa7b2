"""Takes a delivery from its admission to its end: the lane of its key, a runner, the handler, and further attempts.

Guaranteed to the flow runners: every delivery given to `dispatch` is reported exactly once (L8), after it has left its
lane. Its outcome is ACCEPTED if its handler returned, or if the message is known to be on the error queue or to have
been on its parking queue; it has no outcome if it was given back or cancelled (L7). There is no other outcome. A failed
delivery stays at the head of its lane and is tried again until its policy ends that (L3). If the policy says `stop`, it
stays there as long as its flow handle lives, and nothing more of that handle is started; a new handle, here or
elsewhere, starts afresh.

A delivery without a handler counts as failed: the settings and the publishers disagree, and only the user can tell
which of them is right. It is logged once per topic, and the key waits.

More than 400 lines, because every end of a delivery is here: one can check in one place that each ends once.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from contextvars import copy_context
from time import monotonic_ns

from lbg_runtime.config.settings import DispatchSettings, FailureSettings
from lbg_runtime.core.chance import RandomSource
from lbg_runtime.core.group.control_messages import ParkingWait
from lbg_runtime.core.lanes import KeyLanes, Lane, LaneSight, LaneStage
from lbg_runtime.core.parking.ledger import Verdict
from lbg_runtime.metrics.reading import LanesReading, ParkingReading
from lbg_runtime.model.errors import InvariantViolated, ParkingNotReady, PublishRefused, TransportError
from lbg_runtime.model.failure import Then
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import DeliveryId, Epoch, QueueName
from lbg_runtime.model.keys import PARTITION_KEY, KeySource
from lbg_runtime.model.message import PARTITION_KEY_PROPERTY, Delivery
from lbg_runtime.model.outcome import Outcome
from lbg_runtime.runtime.clock import DeadlineTimer, now_ms, since_boot_ns
from lbg_runtime.runtime.dispatch.error_queue import ErrorQueue
from lbg_runtime.runtime.dispatch.key_reports import KeyReports
from lbg_runtime.runtime.dispatch.keyless import KeylessMessages
from lbg_runtime.runtime.dispatch.seen_keys import SeenKeys
from lbg_runtime.runtime.dispatch.stages import stage_of
from lbg_runtime.runtime.dispatch.troubles import Troubles
from lbg_runtime.runtime.handlers.registry import Handlers
from lbg_runtime.runtime.handlers.routes import Routes
from lbg_runtime.runtime.parking.parked_queue import FOLLOWS, ParkedQueue
from lbg_runtime.runtime.runners.attempts import Attempt, AttemptWatches, InterruptedBy
from lbg_runtime.runtime.runners.dispatch_counts import DispatchCounts
from lbg_runtime.runtime.runners.failure_report import FailureReport, plain, report_of
from lbg_runtime.runtime.runners.handling import CURRENT_HANDLING, GivenBack, Handling, refuse_unrun
from lbg_runtime.runtime.runners.pool import RunnerPool, is_changed, is_closed
from lbg_runtime.runtime.suspension import STOPPED_FOR_NS, Suspension

OnEnd = Callable[[Handling], None]
OnResumed = Callable[[int], None]
OnFirstStart = Callable[[int], None]
OnHoldUp = Callable[[Epoch, tuple[DeliveryId, ...]], None]

# Looked up once: before Python 3.12, access to an enum member costs as much as a function call.
_ACCEPTED = Outcome.ACCEPTED


class Dispatcher:
    """One per member, for all its queues; called by the flow runners from the loop's thread."""

    def __init__(
        self,
        handlers: Handlers,
        shape: GroupShape,
        key_source: KeySource,
        dispatch: DispatchSettings,
        failure: FailureSettings,
        random: RandomSource,
        error_queue: ErrorQueue | None = None,
        *,
        keys_move_unseen: bool = False,
    ) -> None:
        """`error_queue` is needed if a policy moves messages there. `keys_move_unseen`: keys may go to another member
        and come back while a flow stays active, as with a partitioned queue, so each message counts as the first of its
        key.

        Raises `ConfigError` or `HandlerError`.
        """
        self.counts = DispatchCounts()
        self._troubles = Troubles(self.counts)
        self._key_source = key_source
        self._is_stamped_key = key_source == PARTITION_KEY
        """Whether the key is where publishers stamp it: the usual case, which has a short cut."""
        self._keyless = KeylessMessages(dispatch.missing_key, self.counts, random)
        self._random = random
        self._lanes: KeyLanes[Handling] = KeyLanes(max_waiting=dispatch.waiting_limit)
        self._pool = RunnerPool(self._lanes, dispatch.runners, self._handle_turn)
        self.batch_turns = self._pool.batch_turns
        """The flow runners tell it what leaves in good order, so that nothing of that waits for its batch to fill."""
        self._attempts = AttemptWatches(self._replace_stuck_runner, self.note_awake)
        self._moves = self._attempts.of(None)
        self.key_reports = KeyReports(dispatch, self._lanes, self._attempts, self._hold_up)
        """Its `run` must run alongside that of the dispatcher."""
        self._error_queue = error_queue
        self._parkings: dict[QueueName, ParkedQueue] = {}
        """By the queue whose messages are parked there."""
        self._replayed: dict[QueueName, QueueName] = {}
        """For each parking queue, the queue whose messages are parked there. A delivery of a parking queue is a
        replay."""
        self._stopped: dict[QueueName, Epoch] = {}
        """Flow handles from which nothing more is started."""
        self._keys_move_unseen = keys_move_unseen
        self._seen_keys = SeenKeys()
        self._routes = Routes(handlers, shape, failure, self._attempts)
        self._known_routes = self._routes.known
        self._on_end: dict[QueueName, OnEnd] = {}
        self._on_hold_up: dict[QueueName, OnHoldUp] = {}
        self._on_first_start: dict[QueueName, tuple[Epoch, OnFirstStart]] = {}
        """Of flow handles of which nothing was started yet, if somebody wants to know."""
        self._starts = 0
        self._seen_ns = since_boot_ns()
        """When the loop was last known to be running."""
        self._suspension: Suspension | None = None
        """None if nobody watches the process."""
        self._on_resumed: OnResumed = lambda _: None
        self._is_closed = False
        self._retry_timer = DeadlineTimer(self._release_due)

    # -- what the flow runners call

    def attach(self, queue: QueueName, on_end: OnEnd, on_hold_up: OnHoldUp | None = None) -> None:
        """Register the callbacks for the ends of a queue's deliveries, and for deliveries that wait behind one that
        makes no progress; neither may raise."""
        self._on_end[queue] = on_end
        if on_hold_up is not None:
            self._on_hold_up[queue] = on_hold_up

    def tell_first_start(self, queue: QueueName, epoch: Epoch, tell: OnFirstStart) -> None:
        """Call `tell` with the time (ns) when the first handler of a flow handle is started, also for a replay."""
        self._on_first_start[queue] = epoch, tell

    def tell_no_start(self, queue: QueueName) -> None:
        """Take the wish for a queue's first start back; nothing happens if there is none."""
        self._on_first_start.pop(queue, None)

    def park_in(self, queue: QueueName, parking: ParkedQueue) -> None:
        """Set where messages of a queue are parked; needed if a policy parks them."""
        self._parkings[queue] = parking
        self._replayed[parking.parking] = queue
        self.attach(parking.parking, parking.finished)

    def dispatch(self, delivery: Delivery) -> bool:
        """Put a delivery at the end of its key's lane; return whether it is held up there: more deliveries than a key
        may keep waiting are before it, or one that makes no progress.

        If so, its flow runner excuses it, so that the intake goes on for other keys.
        """
        handling = self._prepare(delivery)
        if self._is_closed:
            self._end(handling, None)
            return False
        is_held_up = self._lanes.offer(handling.lane, handling)
        if is_held_up:
            self.key_reports.key_may_be_hot(handling)
        self._pool.wake()
        return is_held_up

    def return_unstarted(self, queue: QueueName, epoch: Epoch, *, keeps_moved: bool = False) -> None:
        """End, without an outcome, the deliveries of a flow handle that no handler has, also those between attempts.

        A delivery whose handler still waits to be called, as for its batch, ends as soon as that wait, which is
        cancelled, has ended.

        `keeps_moved`: a delivery of which a copy may have arrived elsewhere stays, with its lane, and is tried again.
        """
        if self._stopped.get(queue, epoch + 1) <= epoch:
            del self._stopped[queue]

        def is_kept(each: Handling) -> bool:
            return keeps_moved and _may_be_elsewhere(each, queue, epoch)

        for handling in self._lanes.return_unstarted(queue, epoch, is_kept):
            self._end_unhandled(handling, None)
        self._attempts.recall_put_off(queue, epoch)
        self._retry_timer.set(self._lanes.next_delayed_ms())
        # A lane whose head went back may be ready for another flow's delivery.
        self._pool.wake()

    def is_stalled(self, queue: QueueName, epoch: Epoch) -> bool:
        """Whether nothing of a flow handle runs or is about to start: all of it waits for another attempt.

        False also if one of its messages is being moved and the copy may have arrived elsewhere: if the message went
        back now, the next owner would handle it again.
        """
        return self._lanes.is_stalled(queue, epoch) and not any(
            _may_be_elsewhere(each, queue, epoch) for each in self._lanes.held()
        )

    def stop(self, queue: QueueName, epoch: Epoch) -> None:
        """Start nothing more of a flow handle; its flow runner must then give the handle up. What runs goes on; if it
        fails, it goes back and is not moved, as another member may be handling it by now."""
        self._stopped[queue] = epoch
        self._attempts.recall_put_off(queue, epoch)
        self._lanes.recall(queue, epoch)

    def forget_keys(self, queue: QueueName) -> None:
        """Count the next message of each of the queue's keys as its first: a shard has left the queue, and may come
        back. Constant time."""
        self._seen_keys.forget(queue)

    def cancel_handling(self, queue: QueueName, epoch: Epoch) -> None:
        """Cancel the running handlers of a flow handle; their deliveries end without an outcome."""
        self._attempts.recall(queue, epoch)

    # -- what the supervisor calls

    async def run(self) -> None:
        """Handle deliveries until cancelled; after that nothing runs, every delivery has ended, and later ones end at
        once."""
        try:
            await self._pool.run()
        finally:
            self._attempts.close()
            self._retry_timer.cancel()
            # If an error has ended this, the flows have yet to leave, and for that, all they have dispatched must end.
            self._is_closed = True
            for handling in self._lanes.take_all():
                self._end(handling, None)

    def heed(self, suspension: Suspension, on_resumed: OnResumed) -> None:
        """From now on, call `on_resumed` after a stop of the process, before anything more is started, with the length
        of the stop in nanoseconds; it has all flow handles given up.

        Where stops are watched for, a loop that is blocked for too long is ended, so the pool also sees to it that
        handlers that block do not add up within one turn of the loop.
        """
        self._suspension, self._on_resumed, self._seen_ns = suspension, on_resumed, since_boot_ns()
        self._pool.limit_turns(monotonic_ns)

    def note_awake(self) -> None:
        """Note that the loop is running; called before anything that was put off begins and, so that idleness does not
        count as a stop, about once a second."""
        self._note_awake(since_boot_ns())

    def cancel_everything(self) -> None:
        """End all deliveries, present and future, without an outcome: no further handler is started.

        Deliveries that wait end at once; those that are being handled end when their handlers, which are cancelled, do.
        """
        self._is_closed = True
        handles = dict.fromkeys((each.queue, each.epoch) for each in self._lanes.held())
        for queue, epoch in handles:
            self.return_unstarted(queue, epoch)
            self.cancel_handling(queue, epoch)

    def running(self) -> list[Handling]:
        """The handlings that are running now."""
        return self._attempts.handlings()

    # -- answers to questions

    def toughest(self) -> LaneSight[Handling] | None:
        """The state of the key whose next message has been tried most often; None if nothing is here."""
        lane = max(self._lanes.lanes(), key=lambda each: each.attempt, default=None)
        return None if lane is None else self._lanes.look(lane.key)

    def look(self, key: str) -> LaneSight[Handling] | None:
        """The state of the key's lane; None if nothing of the key is here."""
        return self._lanes.look(key)

    def parked(self) -> ParkingReading:
        """What is parked in the queues that this member owns, as far as it knows (`parking_waits`)."""
        counts = [parking.counts for parking in self._parkings.values()]
        return ParkingReading(sum(keys for keys, _ in counts), sum(count for _, count in counts), self.counts.parked)

    def parked_of(self, key: str) -> int:
        """Messages of a key that are parked in the queues that this member owns, as far as it knows."""
        return sum(parking.count_of(key) for parking in self._parkings.values())

    def parking_waits(self) -> dict[QueueName, ParkingWait]:
        """The queues that this member owns without knowing what is parked of them; nothing of them is handled."""
        waits = {queue: parking.wait for queue, parking in self._parkings.items()}
        return {queue: wait for queue, wait in waits.items() if wait is not None}

    def is_stopped(self, queue: QueueName, epoch: Epoch) -> bool:
        """Whether nothing more of a flow handle is started: one of its messages has failed for good, or it is being
        given up after a stop of the process."""
        return self._stopped.get(queue) == epoch

    def held(self) -> LanesReading:
        """What the lanes of all keys hold."""
        running = sum(stage_of(lane) is LaneStage.RUNNING for lane in self._lanes.lanes())
        return LanesReading(self._lanes.count, running, self._lanes.waiting + self._lanes.running - running)

    # -- one delivery, step by step

    def _prepare(self, delivery: Delivery) -> Handling:
        message = delivery.message
        route = self._known_routes.get(message.topic) or self._routes.look_up(message.topic)
        if self._is_stamped_key:
            found = message.properties.get(PARTITION_KEY_PROPERTY)
            if type(found) is str:
                return Handling(delivery, found, found, route)
        key = self._key_source.extract(route.topic, message.properties, message.payload)
        handling = self._keyless.take(delivery, route) if key is None else Handling(delivery, key, key, route)
        is_ordered = message.key == key if key is not None else self._keyless.keeps_order
        if is_ordered:
            return handling
        has_token = message.fencing_token is not None
        # The number of a token counts within the key it was stamped with. Under another key, a guard could take the
        # message for an old one.
        if key is not None:
            handling.message = message.in_lane_of(key)
        elif has_token:
            handling.message = message.without_token()
        if has_token:
            self._troubles.foreign_stamp(handling)
        return handling

    async def _handle_turn(self, lane: Lane[Handling], task: "asyncio.Task[object]") -> None:
        handling = lane.head
        now_ns = since_boot_ns()
        if now_ns - self._seen_ns > STOPPED_FOR_NS:
            self._note_awake(now_ns)
            # The callback may have taken this one back: a replay of a parked message is taken back at once.
            if lane.is_recalled:
                self._finish(lane, None)
                return
        self._seen_ns = now_ns
        if self._stopped and self._is_held(handling):
            self._hold(lane)
            return
        if handling.attempts == 0:
            if self._parkings and self._may_be_parked(handling) and await self._set_aside(lane, task):
                return
            delivery = handling.delivery
            self._starts += 1
            handling.local_seq = self._starts
            handling.start_mono_ns = monotonic_ns()
            if self._keys_move_unseen or self._seen_keys.meet(delivery.queue, delivery.epoch, handling.lane):
                handling.message = handling.message.as_first_of_key()
                # Here, as the first start of a flow handle is that of a key's first message. No call for messages of
                # other queues: an idle one may wait for its first message for as long as it is ours.
                if delivery.queue in self._on_first_start or delivery.queue in self._replayed:
                    self._note_first_start(handling)
        elif handling.end_report is not None:
            if not await self._gave_way(lane, task):
                await self._move(lane, handling.end_report, task)
            return
        handling.attempts += 1
        route = handling.route
        failure: BaseException | None = None
        CURRENT_HANDLING.set(handling)
        context = copy_context()
        attempt = route.attempts.start(handling, task)
        try:
            answer = await route.function(handling.message)
            if answer is not None:
                refuse_unrun(answer)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # the handler boundary; errors of some libraries are not of class `Exception`
            if is_closed(task):
                raise
            failure = error
        try:
            if task.cancelling():
                # Raises if the runner itself is to end; its delivery then ends in `run`.
                await self._pool.take_back(task)
        finally:
            route.attempts.end(attempt)
        if is_changed(context):
            self._pool.soil(task)
        if failure is None and attempt.interrupted_by is None:
            # Not `_finish`: that is for what was not handled, and would cost every message another call.
            self._lanes.finish(lane)
            self._end(handling, _ACCEPTED)
        else:
            try:
                await self._conclude(lane, attempt, failure)
            finally:
                # The traceback refers to this frame, and to all that the handler's frames refer to: break the cycle.
                failure = None

    async def _conclude(self, lane: Lane[Handling], attempt: Attempt, failure: BaseException | None) -> None:
        handling = attempt.handling
        if attempt.is_stuck:
            self._pool.stand_down()
        if attempt.interrupted_by in (InterruptedBy.RETURN, InterruptedBy.STOP):
            # Its handler was not called.
            handling.attempts -= 1
        if attempt.interrupted_by in (InterruptedBy.RETURN, InterruptedBy.RECALL):
            self._finish(lane, None)
            return
        if attempt.interrupted_by is InterruptedBy.STOP:
            self._hold(lane)
            return
        # After a stop of the process, failures and time-outs may be the first to show it.
        self.note_awake()
        if failure is not None:
            failure = plain(failure)
        if isinstance(failure, GivenBack):
            handling.attempts -= 1
            if not lane.is_recalled:
                # Until its flow has taken back what has not started, no successor may start (L3).
                self._stopped[handling.queue] = handling.epoch
            self._finish(lane, None)
            return
        policy = handling.route.policy
        # Its time was up and it returned nevertheless: that is no success. Better handled twice than lost.
        timed_out = attempt.interrupted_by is InterruptedBy.TIMEOUT
        if timed_out or failure is None:  # the latter for the type checker: without a failure it has timed out
            failure = policy.overdue()
        then = policy.end_after(handling.attempts, failure)
        is_parked = handling.queue in self._replayed
        if is_parked and then is Then.STOP:
            # It is parked already, and stays so.
            then = Then.PARK
        delay_ms = policy.delay_ms(handling.attempts, failure, self._random) if then is None else 0
        follows: dict[str, str | int] = {}
        if not lane.is_recalled:  # otherwise it goes back to its queue
            follows = {"next_attempt_ms": delay_ms} if then is None else {"then": then.value}
        self._troubles.attempt_failed(handling, failure, follows, with_stack=not timed_out)
        if then is None:
            self._try_again_in(delay_ms, lane)
            return
        report = handling.end_report = report_of(failure, then, handling.attempts)
        if then is Then.PARK and is_parked:
            self._finish(lane, None)
        elif then is Then.STOP:
            if self._hold(lane):
                self._stopped[handling.queue] = handling.epoch
                self._hold_what_waits(handling.queue, handling.epoch)
                self._troubles.queue_stopped(handling, report)
        else:
            await self._move(lane, report, attempt.task)

    def _try_again_in(self, delay_ms: int, lane: Lane[Handling]) -> None:
        if self._lanes.delay(lane, now_ms() + delay_ms):
            self._retry_timer.set(self._lanes.next_delayed_ms())
            self._hold_up(lane)
        else:
            self._finish(lane, None)

    def _hold_up(self, lane: Lane[Handling]) -> None:
        """Tell the flow runners that the head of a lane makes no progress: other keys need not wait for what is behind
        it."""
        by_flow: defaultdict[tuple[QueueName, Epoch], list[DeliveryId]] = defaultdict(list)
        for handling in self._lanes.hold_up(lane):
            by_flow[handling.queue, handling.epoch].append(handling.delivery.delivery_id)
        for (queue, epoch), delivery_ids in by_flow.items():
            if (on_hold_up := self._on_hold_up.get(queue)) is not None:
                on_hold_up(epoch, tuple(delivery_ids))

    def _finish(self, lane: Lane[Handling], outcome: Outcome | None) -> None:
        """Take the head, which was not handled, out of its lane, then end it: in this order, because the callback for
        its end may look at the lane."""
        handling = lane.head
        self._lanes.finish(lane)
        self._end_unhandled(handling, outcome)

    def _end_unhandled(self, handling: Handling, outcome: Outcome | None) -> None:
        """End a delivery that no handler has finished. If it was the first of its key, the next one becomes that."""
        if handling.message.is_first_of_key:
            self._seen_keys.take_back(handling.lane)
        self._end(handling, outcome)

    def _end(self, handling: Handling, outcome: Outcome | None) -> None:
        """The one place where a delivery ends (L8)."""
        if handling.done_mono_ns:
            raise InvariantViolated(f"delivery {handling.delivery.delivery_id} ended twice")
        parking = self._parkings.get(handling.delivery.queue) if outcome is None else None
        if parking is not None and not parking.was_parked(handling):
            parking = None
        # The copy of a message that is being parked may have arrived between two tries, and may have been replayed
        # since. If the message went back, the next owner would handle it again.
        handling.outcome = outcome if parking is None else _ACCEPTED
        handling.done_mono_ns = monotonic_ns()
        self._on_end[handling.delivery.queue](handling)
        if parking is not None:
            # Last: whatever becomes of the log, the delivery has ended.
            self._troubles.moved(handling, handling.end_report or FOLLOWS, parking.parking)

    # -- when attempts have ended

    async def _move(self, lane: Lane[Handling], report: FailureReport, task: "asyncio.Task[object]") -> None:
        """Publish the head to the error queue, the dead message queue or its parking queue. Until that is confirmed, it
        stays on its own queue, and its key waits."""
        handling = lane.head
        target = self._parkings.get(handling.queue) if report.then is Then.PARK else self._error_queue
        if target is None:
            raise InvariantViolated(f"a policy says {report.then.value} and the dispatcher has nowhere to put it")
        if lane.is_recalled:
            # Another member may be handling it by now.
            self._finish(lane, None)
            return
        failure: BaseException | None = None
        was_elsewhere = getattr(handling, "may_be_elsewhere", False)
        # From the start of the move: `return_unstarted` must not take it while its copy is under way.
        handling.may_be_elsewhere = True
        attempt = self._moves.start(handling, task)
        try:
            to = await target.take(handling, report)
        except (asyncio.CancelledError, TransportError) as error:
            failure = error
        try:
            if task.cancelling():
                await self._pool.take_back(task)
        finally:
            self._moves.end(attempt)
        if attempt.interrupted_by is InterruptedBy.RECALL:
            self._finish(lane, None)
        elif failure is None:
            self._troubles.moved(handling, report, to)
            self._finish(lane, _ACCEPTED)
        else:
            if isinstance(failure, PublishRefused) or (isinstance(failure, ParkingNotReady) and not failure.was_sent):
                handling.may_be_elsewhere = was_elsewhere
            self._troubles.move_failed(handling, failure)
            # The lane counts turns: those of the handler's attempts, and of further tries to move. The first try shares
            # the turn of the last attempt, if there was any. After a replay that went first, the lane counts afresh.
            tries = max(1, lane.attempt - max(1, handling.attempts) + 1)
            self._try_again_in(handling.route.policy.move_delay_ms(tries, self._random), lane)

    def _note_first_start(self, handling: Handling) -> None:
        own = self._replayed.get(handling.queue, handling.queue)
        epoch, tell = self._on_first_start.get(own, (None, None))
        if tell is not None and epoch == handling.epoch:
            del self._on_first_start[own]
            tell(handling.start_mono_ns)

    def _may_be_parked(self, handling: Handling) -> bool:
        """Whether the parking queue may have to judge the delivery. Called for every message."""
        parking = self._parkings.get(handling.delivery.queue)
        return parking is not None and (handling.end_report is not None or parking.concerns(handling))

    async def _set_aside(self, lane: Lane[Handling], task: "asyncio.Task[object]") -> bool:
        """If the head's key is parked, park the head before its handler is started; return whether that took its
        turn."""
        handling = lane.head
        parking = self._parkings.get(handling.queue)
        verdict = Verdict.HANDLE if parking is None else parking.judge(handling)
        if verdict is Verdict.HANDLE:
            # The key may have been parked when we last tried to park this message, and is not any more.
            handling.end_report = None
            return False
        handling.end_report = FOLLOWS
        if await self._gave_way(lane, task):
            return True
        if verdict is Verdict.PARK:
            await self._move(lane, FOLLOWS, task)
        else:
            self._finish(lane, _ACCEPTED)
        return True

    async def _gave_way(self, lane: Lane[Handling], task: "asyncio.Task[object]") -> bool:
        """Handle a replayed message of the key before the head, which can be parked only after it and must not block
        it; return whether there was one."""
        handling = lane.head
        parking = self._parkings.get(handling.queue)
        if parking is None or not parking.is_replaying(handling):
            return False
        if not self._lanes.bring_forward(lane, lambda each: each.queue in self._replayed):
            return False
        await self._handle_turn(lane, task)
        return True

    def _note_awake(self, now_ns: int) -> None:
        unseen_ns, since_ns, self._seen_ns = now_ns - self._seen_ns, self._seen_ns, now_ns
        if unseen_ns > STOPPED_FOR_NS and self._suspension is not None and self._suspension.was_since(since_ns, now_ns):
            self._on_resumed(unseen_ns)

    def _is_held(self, handling: Handling) -> bool:
        """Whether its flow handle is stopped. For a replay: whether the handle of its own queue is, unless all that is
        left is to move the message."""
        if self._stopped.get(handling.queue) == handling.epoch:
            return True
        own = self._replayed.get(handling.queue)
        return own is not None and self._stopped.get(own) == handling.epoch and handling.end_report is None

    def _hold_what_waits(self, queue: QueueName, epoch: Epoch) -> None:
        """Hold what waits for its batch, or for an application, as it has not started; so with replays that wait."""
        self._attempts.hold_put_off(queue, epoch)
        if (parking := self._parkings.get(queue)) is not None:
            self._attempts.hold_put_off(parking.parking, epoch)

    def _hold(self, lane: Lane[Handling]) -> bool:
        """Keep the head of the lane where it is until its flow is given up; False if it already was."""
        if self._lanes.hold(lane):
            return True
        self._finish(lane, None)
        return False

    # -- retries, hanging handlers

    def _release_due(self) -> None:
        self._lanes.release_due(now_ms())
        self._retry_timer.set(self._lanes.next_delayed_ms())
        self._pool.wake()

    def _replace_stuck_runner(self, handling: Handling) -> None:
        self._troubles.handler_ignored_cancellation(handling)
        self._pool.stand_in()


def _may_be_elsewhere(handling: Handling, queue: QueueName, epoch: Epoch) -> bool:
    is_meant = handling.queue == queue and handling.epoch == epoch and handling.end_report is not None
    return is_meant and getattr(handling, "may_be_elsewhere", False)
