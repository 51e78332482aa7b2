"""What an administrator can change and see while clients are connected."""

from collections.abc import Container, Iterator

from lbg_runtime.broker.engine.accounts import Accounts
from lbg_runtime.broker.engine.answers import ClientStatus, GroupStatus, MessageStatus
from lbg_runtime.broker.engine.effects import Effect
from lbg_runtime.broker.engine.lines.kinds import kind_of
from lbg_runtime.broker.engine.registry import Registry
from lbg_runtime.broker.engine.settings import QueueSettings
from lbg_runtime.broker.engine.vpn import Client
from lbg_runtime.model.errors import BrokerRefusal
from lbg_runtime.model.ids import QueueName


class Administration:
    """Part of an engine, with its rules: one thread, refusals are `BrokerRefusal`, effects must be carried out.

    403 `Message VPN Not Allowed` for a VPN that does not exist, 503 `Unknown Queue` for a queue that does not exist.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def vpn_names(self) -> tuple[str, ...]:
        """Names of all VPNs, in the order in which they were added."""
        return tuple(self._registry.vpns)

    # -- queues

    def change_queue(self, vpn: str, queue: QueueName, settings: QueueSettings) -> list[Effect]:
        """Change the settings of a queue.

        Its flows end with 503 `Service Unavailable` if it may no longer have any, after which clients ask for theirs
        again until they are admitted; and with 503 `Queue Shutdown` if settings by which they were admitted have
        changed.
        """
        found = self._registry.queue(vpn, queue)
        before = found.settings
        keeps_flows = settings.egress_enabled and _admission(settings) == _admission(before)
        text = "Queue Shutdown" if settings.egress_enabled else "Service Unavailable"
        effects = [] if keeps_flows else self._registry.end_flows(found, text)
        return effects + found.change(settings)

    def delete_messages(self, vpn: str, queue: QueueName, sequences: Container[int] | None = None) -> list[Effect]:
        """Remove messages from a queue, those in these places or all, no matter who holds them."""
        return self._registry.queue(vpn, queue).delete_messages(sequences)

    def queue_messages(self, vpn: str, queue: QueueName, behind: int = 0) -> Iterator[MessageStatus]:
        """Every message that a queue has now behind a place, in order."""
        return self._registry.queue(vpn, queue).messages(behind)

    def copy_message(self, vpn: str, source: QueueName, number: int, target: QueueName) -> list[Effect]:
        """Put the message with this number on another queue, where it is as new, and leave it where it is.

        `LookupError` if the source does not have it; if the target cannot take it, the refusal that a publisher gets.
        """
        held, taken = (self._registry.queue(vpn, each) for each in (source, target))
        message = next((each.message for each in held.messages(0) if each.message.number == number), None)
        if message is None:
            raise LookupError(number)
        if (obstacle := taken.obstacle_to(message)) is not None:
            raise obstacle.refusal()
        return taken.add(message)

    def clear_counts(self, vpn: str, queue: QueueName) -> None:
        """Have a queue count anew what came, died, was refused or delivered again; not replays, nor its rates."""
        self._registry.queue(vpn, queue).clear_counts()

    def groups(self, vpn: str, queue: QueueName) -> tuple[GroupStatus, ...]:
        """The message groups of a queue that are pinned to a flow now."""
        return self._registry.queue(vpn, queue).groups()

    def reset_groups(self, vpn: str, queue: QueueName, group: str | None = None) -> list[Effect]:
        """Choose a new flow for one message group, or for all: at the group's next message, without waiting.

        Messages in flight stay where they are, so for a time two flows can have messages of one group.
        """
        return self._registry.queue(vpn, queue).unpin_group(group)

    # -- clients

    def accounts(self, vpn: str) -> Accounts:
        """The accounts of a VPN; after removing or disabling one, call `end_clients_of` for it."""
        return self._registry.vpn(vpn).accounts

    def end_clients_of(self, vpn: str, username: str) -> list[Effect]:
        """End every client whose account is configured under this username."""
        clients = [client for client in self._registry.vpn(vpn).clients.values() if client.account.name == username]
        self._registry.send_no_more(clients)
        effects: list[Effect] = []
        for client in clients:
            effects += self._registry.end_client(client, "Client Username Is Shutdown")
        return effects

    def end_client(self, vpn: str, client_name: str) -> list[Effect]:
        """End the connection of a client, which may connect again; 503 `Service Unavailable` if there is none."""
        return self._registry.end_client(self._client(vpn, client_name), "Disconnected By Administrator")

    def client_names(self, vpn: str) -> tuple[str, ...]:
        """Names of all clients that are logged in."""
        return tuple(self._registry.vpn(vpn).clients)

    def client(self, vpn: str, client_name: str) -> ClientStatus:
        """What an administrator can see of a client that is logged in; 503 `Service Unavailable` if there is none."""
        client, flows = self._client(vpn, client_name), self._registry.flows
        return ClientStatus(
            client=client.id,
            name=client.name,
            username=client.username,
            account=client.account.name,
            address=client.address,
            subscriptions=client.vpn.client_subscriptions.of(client),
            flows=tuple((queue.name, queue.flow_status(flows[flow][2])) for flow, queue in client.flows.items()),
            publisher_flow_count=len(client.publishers),
            introduction=client.introduction,
            connected_ms=client.connected_ms,
        )

    def _client(self, vpn: str, client_name: str) -> Client:
        client = self._registry.vpn(vpn).clients.get(client_name)
        if client is None:
            raise BrokerRefusal(503, "Service Unavailable")
        return client


def _admission(settings: QueueSettings) -> tuple[object, ...]:
    """The settings by which flows were admitted: if they change, the flows cannot stay."""
    return settings.owner, settings.permission, *kind_of(settings)
