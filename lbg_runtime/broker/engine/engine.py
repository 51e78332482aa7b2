"""The whole broker as one pure object: every call changes state and returns the effects to carry out, in order.

More than 400 lines, as it is the one list of what front ends may call, and most of it documents what a call promises.
"""

from collections.abc import Iterable
from dataclasses import replace

from lbg_runtime.broker.engine.accounts import Account, ClientProfile
from lbg_runtime.broker.engine.administration import Administration
from lbg_runtime.broker.engine.admission import granted
from lbg_runtime.broker.engine.answers import (
    NOT_INTRODUCED,
    BoundQueue,
    FlowStatus,
    Introduction,
    PublisherFlow,
    QueueStatus,
    SettledRange,
)
from lbg_runtime.broker.engine.changes import Change, Changes, DeliveryIdsSkipped, QueueJournal, QueueNumber
from lbg_runtime.broker.engine.deliveries import DeliveryIds
from lbg_runtime.broker.engine.effects import ClientId, Effect, FlowEnded, FlowId, Published
from lbg_runtime.broker.engine.flow import BrowserFlow, Flow, Wants, wants_everything
from lbg_runtime.broker.engine.matching.selector import compile_selector
from lbg_runtime.broker.engine.matching.subscriptions import topic_of
from lbg_runtime.broker.engine.publishing import Publishing, direct_deliveries
from lbg_runtime.broker.engine.queue import Queue
from lbg_runtime.broker.engine.registry import Registry
from lbg_runtime.broker.engine.replay.log import ReplayStart
from lbg_runtime.broker.engine.replay.replays import Replays
from lbg_runtime.broker.engine.restoration import Restoration
from lbg_runtime.broker.engine.settings import Permission, QueueSettings
from lbg_runtime.broker.engine.surroundings import Asked, Surroundings
from lbg_runtime.broker.engine.transactions import Transactions
from lbg_runtime.broker.engine.vpn import Client, Vpn, is_queue_name
from lbg_runtime.broker.engine.waiting import NO_DELIVERY
from lbg_runtime.model.errors import BrokerRefusal
from lbg_runtime.model.ids import DeliveryId, QueueName

DEFAULT_VPN = "default"
LARGEST_RECEIVED_ID = DeliveryId((1 << 62) - 1)
"""A client that claims a greater one, which was never given, would use up everybody's delivery ids."""

_TEMPORARY = QueueSettings(durable=False)


class Engine:
    """Called only by front ends, from one thread. Refusals are `BrokerRefusal` with the wire's code and text.

    Calls may come late, for flows and clients that have ended, because effects and frames cross on the way:
    `disconnect`, `unbind`, `open_window` and `settle` do nothing then; calls that a client waits for an answer to are
    refused with 503 `Service Unavailable`. The front end must check that a flow belongs to the calling client.
    """

    def __init__(self, instance: str = "broker", changes: Changes | None = None, spooler: int = 1) -> None:
        """`instance` differs with every life of a broker: publisher flows of another life must not be taken for one of
        this life. `changes` takes note of all that is to outlive the broker, None if nothing is. `spooler`, 64 bits,
        differs with every broker and is kept through its lives: with a message's number it names that message
        permanently."""
        self._instance = instance
        self.surroundings = Surroundings()
        """What the front end provides; it calls what is `due` of `surroundings.timetable` when the time has come."""
        self.spooler = spooler
        self._changes = changes
        self._registry = Registry(changes, self.surroundings.timetable)
        self._registry.add_vpn(DEFAULT_VPN)
        self._clients = self._registry.clients
        self._flows = self._registry.flows
        self._publishers = self._registry.publishers
        self.administration = Administration(self._registry)
        """What else an administrator may do."""
        self._delivery_ids = DeliveryIds()
        self._publishing = Publishing(self._registry, self.surroundings)
        self.transactions = Transactions(self._registry, self._delivery_ids, self._publishing, self.settle)
        """What clients do in transactions."""
        self.replays = Replays(self._registry, self.surroundings, spooler)
        """Replay logs."""
        self._last_client_id = 0
        self._last_flow_id = 0
        self._last_queue_number = 0

    def restore(self, changes: Iterable[Change]) -> None:
        """Bring this new engine to the state of the one that made these changes, with all its clients gone."""
        restoration = Restoration(self._registry, self._delivery_ids, self._make_queue, self.replays)
        for change in changes:
            restoration.replay(change)
        self._last_flow_id = restoration.finish()
        if self._changes is not None:
            # These are written down already.
            self._changes.take()
            for (vpn, _), publisher in restoration.forgotten.items():
                self._changes.note_publisher_gone(vpn, publisher)

    # -- administration

    def add_vpn(self, vpn: str) -> None:
        """Add a message VPN if it does not exist; `default` exists from the start."""
        self._registry.add_vpn(vpn)

    def add_user(self, vpn: str, username: str, password: str) -> None:
        """Configure a client username that may do everything; from now on unknown usernames are refused."""
        accounts = self._registry.vpn(vpn).accounts
        accounts.put(Account(username, password=password))
        accounts.is_closed = True

    def create_queue(self, vpn: str, queue: QueueName, settings: QueueSettings) -> None:
        """Create a queue; 400 `Endpoint Already Exists`."""
        self._create_queue(self._registry.vpn(vpn), queue, settings, temporary_of=None)

    def delete_queue(self, vpn: str, queue: QueueName) -> list[Effect]:
        """Delete a queue with its messages; its flows end with 503 `Queue Deleted`; 503 `Unknown Queue`."""
        home = self._registry.vpn(vpn)
        found = home.queue(queue)
        # First: what its flows held waits again, and must not die of age in a queue that is gone.
        effects = self._registry.end_flows(found, "Queue Deleted")
        home.remove_queue(found)
        return effects

    def add_queue_subscription(self, vpn: str, queue: QueueName, subscription: str) -> None:
        """Attract messages into a queue; errors as for `subscribe_queue`."""
        home = self._registry.vpn(vpn)
        found = home.queue(queue)
        _check_queue_subscription(subscription)
        home.subscribe_queue(found, subscription)

    def remove_queue_subscription(self, vpn: str, queue: QueueName, subscription: str) -> None:
        """Undo `add_queue_subscription` or `subscribe_queue`; 400 `Subscription Not Found`."""
        home = self._registry.vpn(vpn)
        home.unsubscribe_queue(home.queue(queue), subscription)

    def queue_names(self, vpn: str) -> tuple[QueueName, ...]:
        """Names of all queues of a VPN, in the order of creation."""
        return tuple(self._registry.vpn(vpn).queues)

    def queue_depth(self, vpn: str, queue: QueueName) -> int:
        """Messages spooled, unacknowledged ones included; 503 `Unknown Queue`."""
        return self._registry.queue(vpn, queue).depth

    def queue_settings(self, vpn: str, queue: QueueName) -> QueueSettings:
        """The settings of a queue; 503 `Unknown Queue`."""
        return self._registry.queue(vpn, queue).settings

    def queue_subscriptions(self, vpn: str, queue: QueueName) -> tuple[str, ...]:
        """What a queue attracts, oldest first; 503 `Unknown Queue`."""
        home = self._registry.vpn(vpn)
        return home.queue_subscriptions.of(home.queue(queue))

    def queue_flows(self, vpn: str, queue: QueueName) -> tuple[FlowStatus, ...]:
        """Bound flows in the order of the bind line, then browsers; 503 `Unknown Queue`."""
        return self.queue_status(vpn, queue).flows

    def queue_status(self, vpn: str, queue: QueueName) -> QueueStatus:
        """Everything an administrator can see of a queue; 503 `Unknown Queue`."""
        home = self._registry.vpn(vpn)
        found = home.queue(queue)
        return found.status(home.queue_subscriptions.of(found))

    # -- clients

    def connect(
        self,
        vpn: str,
        username: str,
        password: str | None,
        client_name: str,
        address: str = "",
        introduction: Introduction = NOT_INTRODUCED,
    ) -> tuple[ClientId, list[Effect]]:
        """Log a client in. Another connection of the same name is ended: `ClientEnded`, then what its end causes.

        `address` is the peer's, empty if there is none; the password is None if the front end has authenticated the
        client by other means. 403 `Message VPN Not Allowed`, 400 `Client Name Parse Error`, and as `Accounts.log_in`.
        """
        self.surroundings.check(Asked.LOGIN, client_name)
        home = self._registry.vpn(vpn)
        account = home.log_in(username, password, client_name, address)
        effects: list[Effect] = []
        older = home.clients.get(client_name)
        if older is not None:
            effects = self._registry.end_client(older, "Client Name Taken Over")
        self._last_client_id += 1
        now_ms = self.surroundings.timetable.now()
        client = Client(
            ClientId(self._last_client_id), home, client_name, username, account, address, introduction, now_ms
        )
        home.clients[client_name] = client
        self._clients[client.id] = client
        self._registry.left_queues.give_back(client)
        return client.id, effects

    def disconnect(self, client: ClientId) -> list[Effect]:
        """The connection is gone: its flows leave, their unsettled messages return to the queues flagged, in order.

        Its temporary queues are deleted if it does not come back in a minute; its publisher flows can be resumed by
        name, its consumer flows by a bind with `last_received_id` of the same client name.
        """
        return self._registry.disconnect(client)

    def send_no_more(self) -> None:
        """All clients are about to be disconnected: what one of them gives back goes to no other."""
        self._registry.send_no_more(self._clients.values())

    def profile_of(self, client: ClientId) -> ClientProfile:
        """What a client may do; 503 `Service Unavailable` if it is gone."""
        return self._registry.client(client).account.profile

    def describe(self, client: ClientId, description: str) -> None:
        """The client says something else of itself than at its login."""
        known = self._registry.client(client)
        known.introduction = replace(known.introduction, description=description)

    def rename(self, client: ClientId, name: str) -> None:
        """The client goes on under another name, with all that it has; 400 `Client Name Parse Error`, 400 `Client Name
        Already In Use`."""
        self._registry.rename(self._registry.client(client), name)

    def subscribe(self, client: ClientId, subscription: str) -> None:
        """Attract direct messages; 400 `Subscription Already Exists`, 400 `Subscription Parse Error`, 403
        `Subscription ACL Denied`."""
        known = self._registry.client(client)
        self.surroundings.check(Asked.SUBSCRIBE, known.name)
        _check_subscription(known, subscription)
        known.vpn.client_subscriptions.add(known, subscription)

    def unsubscribe(self, client: ClientId, subscription: str) -> None:
        """Undo `subscribe`; 400 `Subscription Not Found`."""
        known = self._registry.client(client)
        known.vpn.client_subscriptions.remove(known, subscription)

    def subscribe_queue(self, client: ClientId, queue: QueueName, subscription: str) -> None:
        """Attract messages into a queue; as `subscribe`, and 503 `Unknown Queue`, 403 `Permission Not Allowed`."""
        known = self._registry.client(client)
        self.surroundings.check(Asked.SUBSCRIBE, known.name)
        found = _modifiable_queue(known, queue)
        _check_subscription(known, subscription)
        _check_queue_subscription(subscription)
        known.vpn.subscribe_queue(found, subscription)

    def unsubscribe_queue(self, client: ClientId, queue: QueueName, subscription: str) -> None:
        """Undo `subscribe_queue`."""
        known = self._registry.client(client)
        known.vpn.unsubscribe_queue(_modifiable_queue(known, queue), subscription)

    def provision(self, client: ClientId, queue: QueueName, settings: QueueSettings) -> None:
        """Create a queue on a client's behalf; its username becomes the owner; 400 `Endpoint Already Exists`, 400
        `Invalid Queue Name`, 403 `Permission Not Allowed` if its profile may create none."""
        known = self._registry.client(client)
        _check_creation(known)
        if settings.durable and not is_queue_name(queue):
            raise BrokerRefusal(400, "Invalid Queue Name")
        owned = replace(settings, owner=known.username)
        self._create_queue(known.vpn, queue, owned, temporary_of=None if settings.durable else client)

    def deprovision(self, client: ClientId, queue: QueueName) -> list[Effect]:
        """As `delete_queue`, on a client's behalf; 403 `Permission Not Allowed` if it may not delete this one, or its
        profile may create none."""
        known = self._registry.client(client)
        _check_creation(known)
        _check(known.vpn.queue(queue, client), known, Permission.DELETE)
        return self.delete_queue(known.vpn.name, queue)

    # -- publishing

    def publish_direct(self, client: ClientId, message: Published) -> list[Effect]:
        """Send a direct message to every subscribed client once; queues that subscribe get it too (promotion).

        A queue that cannot take it does not get it; if its sender may not publish to the topic, nobody gets it. Nobody
        is told in either case: that is what direct means.
        """
        known = self._registry.client(client)
        vpn = known.vpn
        if not known.account.acl.publish.allows(message.topic):
            return []
        effects = direct_deliveries(vpn, message)
        takers = []
        for queue in vpn.queue_subscriptions.match(message.topic):
            obstacle = queue.obstacle_to(message)
            if obstacle is None:
                takers.append(queue)
            else:
                queue.count_discard(obstacle)
        return effects + self._publishing.put(vpn, message, (takers, ()), known.name) if takers else effects

    def open_publisher(self, client: ClientId, name: str, last_heard_id: int = 0) -> PublisherFlow:
        """Open a publisher flow; `name` is empty for a new one, else the one to resume (unknown names start over).

        `last_heard_id` is the last one that the client has an answer for; it does not know of refusals after it. 403
        `Permission Not Allowed` if the client's profile may not publish persistently.
        """
        known = self._registry.client(client)
        if not known.account.profile.may_send:
            raise BrokerRefusal(403, "Permission Not Allowed")
        flow = self._next_flow_id()
        state = known.vpn.publishers.open(flow, name, new_name=f"{self._instance}-{flow}")
        known.publishers[flow] = state
        self._publishers[flow] = (known, state)
        state.heard_up_to(last_heard_id)
        if self._changes is not None:
            self._changes.note_publisher(known.vpn.name, state)
        return PublisherFlow(flow, state.name, state.last_answered_id)

    def open_transacted_publisher(self, client: ClientId) -> FlowId:
        """Number a publisher flow of a transacted session; refused as for `open_publisher`.

        No state is kept for it: its messages come with a commit, and nobody resumes it.
        """
        if not self._registry.client(client).account.profile.may_send:
            raise BrokerRefusal(403, "Permission Not Allowed")
        return self._next_flow_id()

    def close_publisher(self, flow: FlowId) -> None:
        """End a publisher flow whose client has closed it; it can be resumed by name, as after a broken connection."""
        found = self._publishers.get(flow)
        if found is not None:
            self._registry.close_publisher(found[0], flow)

    def publish(self, flow: FlowId, message_id: int, message: Published) -> list[Effect]:
        """Spool a persistent message in every queue that attracts it, and send it to clients that subscribe directly.

        If it is refused (503 `Spool Over Quota`, 503 `Queue Shutdown`, 400 `Document Is Too Large`, 403 `Publish ACL
        Denied`, 503 `Unknown Queue` for the address of a queue) nobody gets it. An id at or below the last one of the
        flow is a resend: an accepted message is dropped, a refused one is refused again as long as the client may not
        know of it. A message that nobody wants is accepted and dropped; so is its copy for a queue that cannot take it
        and is set not to tell. 503 `Service Unavailable` if the flow is not open: the message is then not judged.
        """
        found = self._publishers.get(flow)
        if found is None:
            raise BrokerRefusal(503, "Service Unavailable")
        client, state = found
        if not state.judge(message_id):
            return []
        if self._changes is not None:
            self._changes.note_publisher(client.vpn.name, state)
        try:
            route = self._publishing.route(client, message)
        except BrokerRefusal as refusal:
            state.refuse(message_id, refusal)
            raise
        effects = self._publishing.put(client.vpn, message, route, state.name)
        effects += direct_deliveries(client.vpn, message)
        return effects

    # -- consuming

    def bind(
        self,
        client: ClientId,
        queue: QueueName,
        *,
        last_received_id: DeliveryId | None = None,
        browser: bool = False,
        create_temporary: bool = False,
        temporary_settings: QueueSettings = _TEMPORARY,
        selector: str = "",
        partition_group: int | None = None,
        replay: ReplayStart | None = None,
    ) -> tuple[BoundQueue, list[Effect]]:
        """Bind a consumer flow with a closed window, last in the queue's bind line.

        `last_received_id` says that the client re-binds a handle that lives on: it still holds what it received up to
        that id and settles it by the old ids, unless the message has gone to someone else meanwhile (`Queue` has the
        rule). A browser is not in the line. `create_temporary` makes the queue, the client's own, if it is missing. 503
        `Unknown Queue`, 503 `Queue Shutdown`, 503 `Max clients exceeded for queue`, 403 `Permission Not Allowed` for a
        queue that the client may not read, another client's temporary one included, and if its profile may create none,
        400 `Invalid Queue or Topic Endpoint Durability` if a durable queue has the name of a temporary.

        With a `selector` it gets only matching messages; 400 `Invalid Selector`, also for a queue with message groups.
        A queue with partitions has neither selectors nor browsers: 403 `Selectors Not Supported on Partitioned Queue`,
        403 `Browsing Not Supported on Partitioned Queue`.
        `partition_group` is the one in the answer to the handle's previous bind.

        With `replay` the queue's messages are replaced by those from that point of the replay log on that it attracts;
        its browsers end with 503 `Replay Started`. Refused as by `Replays.choose`; a flow that asks for a time before
        the log existed is bound, and ends at once with 503 `Replay Start Time Not Available`. A handle that lives on
        and has received something gets no second replay.
        """
        known = self._registry.client(client)
        self.surroundings.check(Asked.BIND, known.name)
        if not known.account.profile.may_receive:
            raise BrokerRefusal(403, "Permission Not Allowed")
        if last_received_id is not None and last_received_id > self._delivery_ids.last:
            if last_received_id > LARGEST_RECEIVED_ID:
                raise BrokerRefusal(400, "Invalid Last Message Id")
            if self._changes is not None:
                self._changes.note(DeliveryIdsSkipped(last_received_id))
        if create_temporary and replay is not None:
            raise BrokerRefusal(403, "Replay Not Supported on Temporary Queue")
        if create_temporary:
            if selector:
                # Refused before there is a queue, which would stay although nobody is bound to it.
                compile_selector(selector)
            found = self._temporary_queue(known, queue, temporary_settings)
        else:
            found = known.vpn.queue(queue, client)
        if browser and found.settings.is_partitioned:
            raise BrokerRefusal(403, "Browsing Not Supported on Partitioned Queue")
        wants = self._wants(found, selector)
        found.admit(known.username, browser=browser)
        effects: list[Effect] | None = []
        # Some clients name 0 for a new handle too; one that has received nothing loses nothing by a second replay.
        if replay is not None and not last_received_id:
            effects = self._replay(known.vpn, found, replay, browser=browser)
        flow = self._next_flow_id()
        bound: Flow
        if browser:
            bound, active = found.browse(flow, client, known.name, wants), True
        else:
            bound = found.bind(flow, client, known.name, last_received_id, wants, partition_group)
            active = found.is_fed(bound)
        known.flows[flow] = found
        self._flows[flow] = (known, found, bound)
        group = None if isinstance(bound, BrowserFlow) else bound.partition_group
        if effects is None:
            # Clients know this text only as the end of a flow, not as a refusal.
            effects = [FlowEnded(client, flow, "Replay Start Time Not Available"), *self.unbind(flow)]
        elif not browser:
            # Other flows may get messages because this one has come. They get them now: it may never open its window.
            effects += self.open_window(flow, NO_DELIVERY, 0)
        return BoundQueue(flow, active, found.settings, granted(found.settings, known.username), group), effects

    def is_bound(self, flow: FlowId) -> bool:
        """Whether a flow is there, and was not ended by whatever has become of its queue."""
        return flow in self._flows

    def unbind(self, flow: FlowId) -> list[Effect]:
        """End a flow: unsettled messages return to the queue flagged, in order; the next in line becomes active.

        Effects: `ActivityChanged` of the next, then what it is sent. The handle is gone: nothing of it is remembered. A
        temporary queue is deleted with its last flow.
        """
        if flow not in self._flows:
            return []
        client, queue, bound = self._flows.pop(flow)
        del client.flows[flow]
        effects = queue.release(bound)
        if queue.temporary_of is not None and not queue.flows:
            client.vpn.remove_queue(queue)
        return effects

    def open_window(self, flow: FlowId, received_up_to: DeliveryId, window: int) -> list[Effect]:
        """Transport acknowledgement: the client has received everything up to this id and takes `window` more."""
        if flow not in self._flows:
            return []
        _, queue, bound = self._flows[flow]
        return queue.open_window(bound, received_up_to, window)

    def settle(self, flow: FlowId, ranges: Iterable[SettledRange]) -> list[Effect]:
        """End deliveries. ACCEPTED and REJECTED remove; FAILED puts back into its place, to come again flagged."""
        if flow not in self._flows:
            return []
        _, queue, bound = self._flows[flow]
        return queue.settle(bound, ranges)

    # -- parts

    def _replay(self, vpn: Vpn, queue: Queue, start: ReplayStart, *, browser: bool) -> list[Effect] | None:
        """Replace what the queue holds; None if this fails and the queue keeps what it holds."""
        try:
            messages = self.replays.choose(vpn, queue, start, browser=browser)
        except BrokerRefusal:
            queue.take_admission_back()
            raise
        return None if messages is None else self.replays.begin(queue, messages)

    def _temporary_queue(self, client: Client, name: QueueName, settings: QueueSettings) -> Queue:
        """A client's own temporary queue, created if missing."""
        if name not in client.vpn.queues:
            _check_creation(client)
            owned = replace(settings, durable=False, owner=client.username)
            self._create_queue(client.vpn, name, owned, temporary_of=client.id)
        found = client.vpn.queue(name, client.id)
        if found.settings.durable:
            raise BrokerRefusal(400, "Invalid Queue or Topic Endpoint Durability")
        return found

    def _wants(self, queue: Queue, text: str) -> Wants:
        if not text:
            return wants_everything
        if queue.settings.is_partitioned:
            raise BrokerRefusal(403, "Selectors Not Supported on Partitioned Queue")
        if queue.settings.groups_messages:
            raise BrokerRefusal(400, "Invalid Selector")
        selector, fields_of = compile_selector(text), self.surroundings.fields_of
        return lambda message: selector(fields_of(message))

    def _next_flow_id(self) -> FlowId:
        self._last_flow_id += 1
        return FlowId(self._last_flow_id)

    def _create_queue(self, vpn: Vpn, name: QueueName, settings: QueueSettings, temporary_of: ClientId | None) -> None:
        self._last_queue_number += 1
        vpn.add_queue(self._make_queue(QueueNumber(self._last_queue_number), vpn, name, settings, temporary_of))

    def _make_queue(
        self,
        number: QueueNumber,
        vpn: Vpn,
        name: QueueName,
        settings: QueueSettings,
        temporary_of: ClientId | None = None,
    ) -> Queue:
        self._last_queue_number = max(self._last_queue_number, number)
        journal = None
        if self._changes is not None and temporary_of is None:
            journal = QueueJournal(number, vpn.name, name, self._changes)

        def bury(settings: QueueSettings, message: Published) -> list[Effect] | None:
            if message.spooled_at_s is not None:
                # Its time to live begins anew, also for whoever counts by this later: a broker that is started again.
                message = replace(message, spooled_at_s=int(self.surroundings.wall_s()))
            return vpn.bury(name, settings, message, self.surroundings.traits_of)

        return Queue(name, settings, self._delivery_ids, temporary_of, journal, self.surroundings, bury)


def _modifiable_queue(client: Client, queue: QueueName) -> Queue:
    found = client.vpn.queue(queue, client.id)
    _check(found, client, Permission.MODIFY_TOPIC)
    return found


def _check(queue: Queue, client: Client, wanted: Permission) -> None:
    if not queue.allows(client.username, wanted):
        raise BrokerRefusal(403, "Permission Not Allowed")


def _check_creation(client: Client) -> None:
    if not client.account.profile.may_create_queues:
        raise BrokerRefusal(403, "Permission Not Allowed")


def _check_subscription(client: Client, subscription: str) -> None:
    if not client.account.acl.subscribe.allows(topic_of(subscription)):
        raise BrokerRefusal(403, "Subscription ACL Denied")


def _check_queue_subscription(subscription: str) -> None:
    """PubSub+ takes a subscription that begins with `!` as an exception to the others. Here it is refused, as it would
    have no effect; in clients' own subscriptions it is a character like any other, there and here."""
    if subscription.startswith("!"):
        raise BrokerRefusal(400, "Subscription Parse Error")
