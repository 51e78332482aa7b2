"""Restores an earlier life of a broker from the changes that it noted."""

from collections.abc import Callable
from typing import assert_never

from lbg_runtime.broker.engine.changes import (
    Change,
    DeliveryIdsSkipped,
    FlowGone,
    FlowKept,
    MessageKept,
    MessageLogged,
    MessagesDelivered,
    MessagesGone,
    MessageUnlogged,
    PublisherGone,
    PublisherKept,
    QueueGone,
    QueueKept,
    QueueNumber,
    ReplayLogGone,
    ReplayLogKept,
    SubscriptionGone,
    SubscriptionKept,
)
from lbg_runtime.broker.engine.deliveries import Deliveries, DeliveryIds
from lbg_runtime.broker.engine.effects import FlowId
from lbg_runtime.broker.engine.flow import Window
from lbg_runtime.broker.engine.publisher_flow import PublisherState
from lbg_runtime.broker.engine.queue import Queue
from lbg_runtime.broker.engine.registry import Registry
from lbg_runtime.broker.engine.replay.replays import Replays
from lbg_runtime.broker.engine.settings import QueueSettings
from lbg_runtime.broker.engine.vpn import Vpn
from lbg_runtime.broker.engine.waiting import SpooledMessage
from lbg_runtime.model.ids import QueueName

MakeQueue = Callable[[QueueNumber, Vpn, QueueName, QueueSettings], Queue]


class Restoration:
    """Replays changes to an engine that nobody has used yet. Called only by the engine, once."""

    def __init__(self, registry: Registry, delivery_ids: DeliveryIds, make_queue: MakeQueue, replays: Replays) -> None:
        self._registry = registry
        self._replays = replays
        self._delivery_ids = delivery_ids
        self._make_queue = make_queue
        self._queues: dict[QueueNumber, tuple[Vpn, Queue]] = {}
        self._flows: dict[FlowId, FlowKept] = {}
        self._last_flow_id = FlowId(0)
        self.forgotten: dict[tuple[str, str], PublisherState] = {}
        """Publisher flows, by VPN and name, that had to make room: with the last connections more were abandoned."""

    def replay(self, change: Change) -> None:
        """Apply one change again."""
        match change:
            case MessageKept(number, sequence, message):
                self._queues[number][1].spool.restore(sequence, message)
                self._registry.numbers.skip_to(message.number)
            case MessagesDelivered():
                self._deliver(change)
            case MessagesGone(number, sequences):
                spool = self._queues[number][1].spool
                spool.remove([gone for sequence in sequences if (gone := spool.at(sequence)) is not None])
                spool.skip_to(max(sequences))
            case MessageLogged() | MessageUnlogged() | ReplayLogKept() | ReplayLogGone():
                self._replays.restore(change)
            case QueueKept():
                self._keep_queue(change)
            case QueueGone(number):
                vpn, queue = self._queues.pop(number)
                vpn.remove_queue(queue)
            case SubscriptionKept(number, topic):
                vpn, queue = self._queues[number]
                vpn.subscribe_queue(queue, topic)
            case SubscriptionGone(number, topic):
                vpn, queue = self._queues[number]
                vpn.unsubscribe_queue(queue, topic)
            case FlowKept():
                self._flows[change.flow] = change
                self._last_flow_id = max(self._last_flow_id, change.flow)
            case FlowGone(flow):
                self._flows.pop(flow, None)
            case PublisherKept(vpn_name, name, last_judged_id, refused):
                state = PublisherState(
                    name, FlowId(0), last_judged_id, {id_: (code, text) for id_, code, text in refused}
                )
                self.forgotten.pop((vpn_name, name), None)
                if (forgotten := self._vpn(vpn_name).publishers.abandon(state)) is not None:
                    self.forgotten[vpn_name, forgotten.name] = forgotten
            case PublisherGone(vpn_name, name):
                self._vpn(vpn_name).publishers.forget(name)
            case DeliveryIdsSkipped(up_to):
                self._delivery_ids.skip_to(up_to)
                self._registry.numbers.skip_to(up_to)
            case _:
                assert_never(change)

    def finish(self) -> FlowId:
        """Restore what clients may come back to; return the greatest flow id that was in use."""
        claimed: dict[FlowId, list[SpooledMessage]] = {flow: [] for flow in self._flows}
        for number, (_, queue) in self._queues.items():
            queue.retention.change(queue.settings)
            for message in queue.spool.messages():
                # An older version gave numbers of gone flows again, maybe on another queue.
                if message.flow in claimed and self._flows[message.flow].queue == number:
                    claimed[message.flow].append(message)
                else:
                    message.flow = None
        for flow, messages in claimed.items():
            kept = self._flows[flow]
            if not messages or kept.queue not in self._queues:
                continue
            deliveries = Deliveries()
            messages.sort(key=lambda each: each.delivery_id)
            deliveries.add([each.delivery_id for each in messages], messages)
            claims = self._queues[kept.queue][1].claims
            claims.restore(flow, kept.client_name, Window(kept.received_up_to, kept.under_way), deliveries)
        return self._last_flow_id

    def _keep_queue(self, change: QueueKept) -> None:
        if (known := self._queues.get(change.queue)) is not None:
            known[1].change(change.settings)
            return
        vpn = self._vpn(change.vpn)
        queue = self._make_queue(change.queue, vpn, change.name, change.settings)
        vpn.add_queue(queue)
        self._queues[change.queue] = (vpn, queue)

    def _deliver(self, change: MessagesDelivered) -> None:
        spool = self._queues[change.queue][1].spool
        # Even if the flow is gone: a store says it of the message until its next delivery, and would say it of another
        # flow with this number.
        self._last_flow_id = max(self._last_flow_id, change.flow)
        for sequence, delivery_id, delivery_count in change.deliveries:
            self._delivery_ids.skip_to(delivery_id)
            if (message := spool.at(sequence)) is not None:
                message.delivery_id, message.flow = delivery_id, change.flow
                message.delivery_count = delivery_count

    def _vpn(self, name: str) -> Vpn:
        self._registry.add_vpn(name)
        return self._registry.vpn(name)
