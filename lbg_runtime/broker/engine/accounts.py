"""Who may log in to a VPN, and what a client may do there: usernames, client profiles and ACL profiles."""

from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network

from lbg_runtime.model.errors import BrokerRefusal
from lbg_runtime.model.topic import covers

DEFAULT_NAME = "default"
"""The name of the account that unknown usernames get, and of the profiles that let it do everything."""

_INBOXES = "#P2P/"


@dataclass(frozen=True, slots=True)
class TopicRule:
    """Allows all topics except some, or only those."""

    allows_by_default: bool = True
    exceptions: tuple[str, ...] = ()

    def allows(self, topic: str) -> bool:
        """Whether a topic, or a subscription as a whole, is allowed; a client's own inboxes always are."""
        if not self.exceptions:
            return self.allows_by_default or topic.startswith(_INBOXES)
        is_exception = any(covers(exception, topic) for exception in self.exceptions)
        return is_exception is not self.allows_by_default or topic.startswith(_INBOXES)


@dataclass(frozen=True, slots=True)
class AddressRule:
    """Allows connections from everywhere except some networks, or only from those."""

    allows_by_default: bool = True
    exceptions: tuple[str, ...] = ()
    """Addresses with the length of their network part: `127.0.0.0/8`."""

    def allows(self, address: str) -> bool:
        """Whether a peer may connect; a peer without an address is inside this process and matches no exception."""
        is_exception = bool(address) and any(
            ip_address(address) in ip_network(exception, strict=False) for exception in self.exceptions
        )
        return is_exception is not self.allows_by_default


@dataclass(frozen=True, slots=True)
class AclProfile:
    """Where a client may come from, and which topics it may use."""

    connect: AddressRule = AddressRule()
    publish: TopicRule = TopicRule()
    subscribe: TopicRule = TopicRule()


@dataclass(frozen=True, slots=True)
class ClientProfile:
    """What a client may do at all."""

    may_send: bool = True
    """Publish persistently."""
    may_receive: bool = True
    """Bind to queues."""
    may_create_queues: bool = True
    may_use_transactions: bool = True


@dataclass(slots=True, eq=False)
class Account:
    """One client username. Changes to it, and to its profiles, take effect at once for all further requests of clients
    that are logged in; open flows stay open."""

    name: str
    is_enabled: bool = True
    password: str | None = None
    """None: any password is accepted."""
    acl: AclProfile = field(default_factory=AclProfile)
    profile: ClientProfile = field(default_factory=ClientProfile)


class Accounts:
    """The usernames of one VPN. Called by the engine, and by administrators through it.

    A username that is not configured has the account `default`, as on a broker that requires no passwords, until
    `is_closed` is set or that account is disabled.
    """

    def __init__(self) -> None:
        self.is_closed = False
        """Whether only configured usernames may log in."""
        self.takes_passwords = True
        self.takes_certificates = False
        self.tokens: dict[str, str] = {}
        """Valid access tokens, each with the username that it stands for."""
        self._accounts = {DEFAULT_NAME: Account(DEFAULT_NAME)}

    def all(self) -> tuple[Account, ...]:
        """Every account, in the order of configuration."""
        return tuple(self._accounts.values())

    def put(self, account: Account) -> None:
        """Configure a username, or change it, also for clients that have the account."""
        known = self._accounts.setdefault(account.name, account)
        known.is_enabled, known.password = account.is_enabled, account.password
        known.acl, known.profile = account.acl, account.profile

    def remove(self, username: str) -> None:
        """Forget a username; no effect if there is none."""
        self._accounts.pop(username, None)

    def log_in(self, username: str, password: str | None, address: str) -> Account:
        """Return the account of a client that may log in; its password is None if it was authenticated in another way.

        401 `Unauthorized`, 403 `Basic Authentication Is Shutdown`, 403 `Client Username Is Shutdown`, 403 `Forbidden`
        if its ACL profile does not let it connect from there.
        """
        if password is not None and not self.takes_passwords:
            raise BrokerRefusal(403, "Basic Authentication Is Shutdown")
        account = self._accounts.get(username)
        if account is None:
            if self.is_closed:
                raise BrokerRefusal(401, "Unauthorized")
            account = self._accounts[DEFAULT_NAME]
        elif password is not None and account.password is not None and account.password != password:
            raise BrokerRefusal(401, "Unauthorized")
        if not account.is_enabled:
            raise BrokerRefusal(403, "Client Username Is Shutdown")
        if not account.acl.connect.allows(address):
            raise BrokerRefusal(403, "Forbidden")
        return account
