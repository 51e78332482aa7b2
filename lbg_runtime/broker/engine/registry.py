"""All objects of a broker, by name and number: what front ends and administrators both work on."""

from collections.abc import Iterable

from lbg_runtime.broker.engine.changes import Changes
from lbg_runtime.broker.engine.effects import ClientEnded, ClientId, Effect, FlowEnded, FlowId, Published
from lbg_runtime.broker.engine.flow import Flow
from lbg_runtime.broker.engine.left_queues import LeftQueues
from lbg_runtime.broker.engine.publisher_flow import PublisherState
from lbg_runtime.broker.engine.queue import Queue
from lbg_runtime.broker.engine.timetable import Timetable
from lbg_runtime.broker.engine.vpn import Client, Vpn, check_client_name
from lbg_runtime.model.errors import BrokerRefusal
from lbg_runtime.model.ids import QueueName


class Numbers:
    """The numbers that messages get when they are accepted: with the broker's id, one identifies a message permanently.

    One per engine, for all its VPNs.
    """

    def __init__(self) -> None:
        self.last = 0

    def give(self, message: Published) -> None:
        """Number an accepted message, above all numbers given before."""
        self.last = message.number = self.last + 1

    def skip_to(self, number: int) -> None:
        """Give no number up to this one."""
        self.last = max(self.last, number)


class Registry:
    """Called only by the engine and its administration."""

    def __init__(self, changes: Changes | None, timetable: Timetable) -> None:
        self.changes = changes
        """Takes note of what outlives the broker; None if nothing does."""
        self.numbers = Numbers()
        self.left_queues = LeftQueues(timetable)
        self.vpns: dict[str, Vpn] = {}
        self.clients: dict[ClientId, Client] = {}
        self.flows: dict[FlowId, tuple[Client, Queue, Flow]] = {}
        self.publishers: dict[FlowId, tuple[Client, PublisherState]] = {}

    def add_vpn(self, name: str) -> None:
        """Add a message VPN if it does not exist."""
        self.vpns.setdefault(name, Vpn(name))

    def vpn(self, name: str) -> Vpn:
        """Find a VPN; 403 `Message VPN Not Allowed`."""
        vpn = self.vpns.get(name)
        if vpn is None:
            raise BrokerRefusal(403, "Message VPN Not Allowed")
        return vpn

    def queue(self, vpn: str, name: QueueName) -> Queue:
        """Find a queue as an administrator does; as `vpn`, and 503 `Unknown Queue`."""
        return self.vpn(vpn).queue(name)

    def client(self, client: ClientId) -> Client:
        """Find a client; 503 `Service Unavailable` if it is gone."""
        known = self.clients.get(client)
        if known is None:
            raise BrokerRefusal(503, "Service Unavailable")
        return known

    def end_flows(self, queue: Queue, text: str) -> list[Effect]:
        effects: list[Effect] = []
        for flow in queue.end_flows():
            client = self.flows.pop(flow.id)[0]
            del client.flows[flow.id]
            effects.append(FlowEnded(client.id, flow.id, text))
        return effects

    def send_no_more(self, clients: Iterable[Client]) -> None:
        """These clients are about to be disconnected: what one of them gives back goes to none of them."""
        for client in clients:
            for flow in client.flows:
                self.flows[flow][2].window.size = 0

    def end_client(self, client: Client, text: str) -> list[Effect]:
        """Have a client's connection closed, and disconnect the client."""
        return [ClientEnded(client.id, text), *self.disconnect(client.id)]

    def close_publisher(self, client: Client, flow: FlowId) -> None:
        """End an open publisher flow of a client; it can be resumed by name."""
        del self.publishers[flow]
        forgotten = client.vpn.publishers.close(flow, client.publishers.pop(flow))
        if forgotten is not None and self.changes is not None:
            self.changes.note_publisher_gone(client.vpn.name, forgotten)

    def rename(self, client: Client, name: str) -> None:
        """Give a client another name: 400 `Client Name Parse Error`, 400 `Client Name Already In Use`."""
        vpn = client.vpn
        check_client_name(name)
        if vpn.clients.get(name, client) is not client:
            raise BrokerRefusal(400, "Client Name Already In Use")
        del vpn.clients[client.name]
        client.name = name
        vpn.clients[name] = client
        self.left_queues.give_back(client)
        # By the names of its members a share finds who gets a topic.
        for text in vpn.client_subscriptions.of(client):
            vpn.client_subscriptions.remove(client, text)
            vpn.client_subscriptions.add(client, text)
        for flow, queue in client.flows.items():
            queue.rename(self.flows[flow][2], name)

    def disconnect(self, client: ClientId) -> list[Effect]:
        """Remove a client with its flows and subscriptions; its temporary queues wait for it. Nothing if it is gone."""
        gone = self.clients.pop(client, None)
        if gone is None:
            return []
        del gone.vpn.clients[gone.name]
        gone.vpn.client_subscriptions.remove_all(gone)
        # A message that dies in one queue because the client leaves may move to another queue that is about to lose the
        # client as well, and must not be sent to it.
        self.send_no_more((gone,))
        for publisher in tuple(gone.publishers):
            self.close_publisher(gone, publisher)
        # A queue loses all flows of the client at once, or the second would be elected when the first leaves.
        lost: dict[Queue, list[Flow]] = {}
        for flow, queue in gone.flows.items():
            lost.setdefault(queue, []).append(self.flows.pop(flow)[2])
        effects: list[Effect] = []
        for queue, flows in lost.items():
            effects += queue.lose(flows)
        self.left_queues.leave(gone)
        return effects
