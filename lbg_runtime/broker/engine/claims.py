"""The messages that clients still hold from flows whose connection broke: the rule of re-binds described in `Queue`."""

from collections.abc import Iterable

from lbg_runtime.broker.engine.changes import QueueJournal
from lbg_runtime.broker.engine.deliveries import Deliveries
from lbg_runtime.broker.engine.effects import FlowId
from lbg_runtime.broker.engine.flow import LARGEST_ID, ConsumerFlow, RememberedFlow, Window
from lbg_runtime.broker.engine.spool import Spool
from lbg_runtime.broker.engine.waiting import SpooledMessage
from lbg_runtime.model.ids import DeliveryId


class Claims:
    """The remembered flows of one queue. Called only by the queue and its parts."""

    def __init__(self, spool: Spool, journal: QueueJournal | None) -> None:
        self._spool = spool
        self._journal = journal
        self._remembered: dict[FlowId, RememberedFlow] = {}

    def remember(self, flow: ConsumerFlow) -> None:
        """The connection of a flow broke; its client may come back to what it holds."""
        if flow.remembered_as in self._remembered:
            # Not fed since it was bound again: its client still holds what it held before.
            self._remembered[flow.remembered_as].is_resumed = False
        elif flow.unsettled:
            self._remembered[flow.id] = RememberedFlow(flow.client_name, flow.window, flow.unsettled)
        else:
            self._note_gone(flow.id)

    def restore(self, flow: FlowId, client_name: str, window: Window, deliveries: Deliveries) -> None:
        """A client from an earlier life of the broker may come back to what it holds."""
        self._remembered[flow] = RememberedFlow(client_name, window, deliveries)

    def rename(self, flow: ConsumerFlow) -> None:
        """The client of a flow has another name, that of the flow by now, under which it will come back."""
        windows = {flow.id: flow.window}
        if flow.remembered_as in self._remembered:
            remembered = self._remembered[flow.remembered_as]
            remembered.client_name = flow.client_name
            windows[flow.remembered_as] = remembered.window
        if self._journal is not None:
            for each, window in windows.items():
                self._journal.flow_renamed(each, flow.client_name, window)

    def give_up(self, flow: ConsumerFlow) -> None:
        """The handle of a flow is given up: forget it."""
        self._note_gone(flow.id)
        self.end(flow.remembered_as)

    def resume(self, client_name: str, last_received_id: DeliveryId) -> FlowId | None:
        """Find the flow that was the client's handle, by the last id it received, which no other flow had.

        If none fits, the client holds nothing that counts, and everything is delivered anew.
        """
        if not last_received_id:
            return None
        for flow, remembered in self._remembered.items():
            if (
                remembered.client_name == client_name
                and not remembered.is_resumed
                and remembered.window.has_been_received(last_received_id)
            ):
                # Messages in transit above that id were lost: the client waits for them under new ids.
                remembered.deliveries.take(DeliveryId(last_received_id + 1), LARGEST_ID)
                remembered.is_resumed = True
                if remembered.deliveries:
                    return flow
                self.end(flow)
                return None
        return None

    def take_over(self, flow: ConsumerFlow) -> None:
        """A flow is fed from now on: messages that its client still holds count as unsettled on it."""
        if flow.remembered_as is None:
            return
        remembered = self._remembered.pop(flow.remembered_as, None)
        before, flow.remembered_as = flow.remembered_as, None
        if remembered is None:
            return
        for delivery_id, message in remembered.deliveries:
            self._spool.hold(message)
            message.flow = flow.id
            flow.unsettled.add((delivery_id,), (message,))
            if self._journal is not None:
                self._journal.delivered(flow, (message,))
        self._note_gone(before)

    def take_settled(self, flow: ConsumerFlow, first: DeliveryId, last: DeliveryId) -> list[SpooledMessage]:
        """Take the messages that a standby's client settles among those it held before."""
        remembered = None if flow.remembered_as is None else self._remembered.get(flow.remembered_as)
        if remembered is None:
            return []
        taken = remembered.deliveries.take(first, last)
        if not remembered.deliveries:
            self.end(flow.remembered_as)
        return taken

    def forget(self, client_name: str) -> None:
        """A client binds a new handle: the handles it lost before will not come back."""
        for flow in [id_ for id_, r in self._remembered.items() if r.client_name == client_name and not r.is_resumed]:
            self.end(flow)

    def end(self, flow: FlowId | None) -> None:
        """Nobody can settle by the ids of this flow any more; no effect if it is not remembered."""
        if flow is not None and self._remembered.pop(flow, None) is not None:
            self._note_gone(flow)

    def end_on(self, messages: Iterable[SpooledMessage]) -> None:
        """Messages leave permanently: nobody can settle them by their latest ids any more."""
        if not self._remembered:
            return
        for message in messages:
            flow = message.flow
            if flow is not None and (remembered := self._remembered.get(flow)) is not None:
                remembered.deliveries.discard(message.delivery_id)
                if not remembered.deliveries:
                    self.end(flow)

    def end_all_of_holders(self, messages: Iterable[SpooledMessage]) -> None:
        """Messages go to another client: nobody can settle anything by the ids of a flow that had one of them."""
        if not self._remembered:
            return
        for message in messages:
            self.end(message.flow)

    def _note_gone(self, flow: FlowId) -> None:
        if self._journal is not None:
            self._journal.flow_gone(flow)
