"""Client usernames, client profiles and ACL profiles: rows here, translated into the engine's accounts."""

from collections.abc import Iterable, Sequence
from ipaddress import ip_network

from lbg_runtime.broker.engine.accounts import DEFAULT_NAME, Account, AclProfile, AddressRule, ClientProfile, TopicRule
from lbg_runtime.broker.engine.administration import Administration
from lbg_runtime.broker.engine.effects import CarryOut
from lbg_runtime.broker.semp.collection import Kept, Rows, only
from lbg_runtime.broker.semp.fault import SempFault
from lbg_runtime.broker.semp.objects import (
    ACL_PROFILE,
    CLIENT_PROFILE,
    CLIENT_USERNAME,
    CONNECT_EXCEPTION,
    NOTED_PROFILE_ATTRIBUTES,
    PUBLISH_EXCEPTION,
    SUBSCRIBE_EXCEPTION,
)
from lbg_runtime.broker.semp.schema import Attribute, ObjectType, Row
from lbg_runtime.broker.semp.target import Keys
from lbg_runtime.model.semp_code import SempCode

_PROFILE_REFERENCES = ("aclProfileName", "clientProfileName")


class AccountRows:
    """The four collections of one broker, which refer to each other; `usernames`, `client_profiles`, `acl_profiles` and
    the exceptions below these are collections of the configuration API."""

    def __init__(self, administration: Administration, carry_out: CarryOut, kept: Kept) -> None:
        self._administration = administration
        self._carry_out = carry_out
        self.usernames = _Usernames(self, kept)
        self.client_profiles = _Profiles(
            self, kept, CLIENT_PROFILE, SempCode.CONFIGDB_OBJECT_DEPENDENCY, NOTED_PROFILE_ATTRIBUTES
        )
        self.acl_profiles = _AclProfiles(self, kept, ACL_PROFILE, SempCode.NOT_ALLOWED)
        self.connect_exceptions = _ConnectExceptions(self, kept, CONNECT_EXCEPTION)
        self.publish_exceptions = _Exceptions(self, kept, PUBLISH_EXCEPTION)
        self.subscribe_exceptions = _Exceptions(self, kept, SUBSCRIBE_EXCEPTION)

    def seed(self, vpn: str) -> None:
        """Give a VPN the objects that every VPN has from the start, and the usernames that the engine already knows."""
        default = ((vpn,), (DEFAULT_NAME,))
        # Each by itself: an older version could die in between, and leave a store that has only some of them.
        if self.client_profiles.read(default) is None:
            everything = {
                "allowGuaranteedEndpointCreateEnabled": True,
                "allowGuaranteedMsgReceiveEnabled": True,
                "allowGuaranteedMsgSendEnabled": True,
                "allowSharedSubscriptionsEnabled": True,
                "allowTransactedSessionsEnabled": True,
            }
            Rows.create(self.client_profiles, default, {**CLIENT_PROFILE.defaults(), **everything})
        if self.acl_profiles.read(default) is None:
            allowing = dict.fromkeys((attribute.name for attribute in ACL_PROFILE.attributes), "allow")
            Rows.create(self.acl_profiles, default, {**ACL_PROFILE.defaults(), **allowing})
        if self.usernames.read(default) is None:
            for account in self._administration.accounts(vpn).all():
                row: Row = {"enabled": account.is_enabled, "password": account.password or ""}
                Rows.create(self.usernames, ((vpn,), (account.name,)), {**CLIENT_USERNAME.defaults(), **row})

    def apply(self, keys: Keys) -> None:
        """Configure a username in the engine as its rows now say."""
        vpn, name = only(keys, 2)
        row = self.usernames.row(keys)
        password = str(row["password"]) or None
        if not row["enabled"]:
            # Its profiles may have been deleted since, and nobody has what they allow.
            self._administration.accounts(vpn).put(Account(name, is_enabled=False, password=password))
            return
        acl = self._read(self.acl_profiles, vpn, row, "aclProfileName")
        profile = self._read(self.client_profiles, vpn, row, "clientProfileName")
        place = ((vpn,), (str(row["aclProfileName"]),))
        account = Account(
            name,
            password=password,
            acl=AclProfile(
                AddressRule(
                    acl["clientConnectDefaultAction"] == "allow",
                    tuple(key[0] for key in self.connect_exceptions.keys(place)),
                ),
                TopicRule(acl["publishTopicDefaultAction"] == "allow", _topics(self.publish_exceptions, place)),
                TopicRule(acl["subscribeTopicDefaultAction"] == "allow", _topics(self.subscribe_exceptions, place)),
            ),
            profile=ClientProfile(
                may_send=bool(profile["allowGuaranteedMsgSendEnabled"]),
                may_receive=bool(profile["allowGuaranteedMsgReceiveEnabled"]),
                may_create_queues=bool(profile["allowGuaranteedEndpointCreateEnabled"]),
                may_use_transactions=bool(profile["allowTransactedSessionsEnabled"]),
            ),
        )
        self._administration.accounts(vpn).put(account)

    def apply_all(self) -> None:
        """Configure every username in the engine, after rows were restored."""
        for vpn in self._administration.vpn_names():
            for key in self.usernames.keys(((vpn,),)):
                self.apply(((vpn,), key))

    def apply_profile(self, vpn: str) -> None:
        """Configure every enabled username of a VPN in the engine, after a profile has changed."""
        for keys in self.enabled_usernames(vpn):
            self.apply(keys)

    def enabled_usernames(self, vpn: str) -> Iterable[Keys]:
        """The usernames whose profiles are certain to exist."""
        every = (((vpn,), key) for key in self.usernames.keys(((vpn,),)))
        return [keys for keys in every if self.usernames.row(keys)["enabled"]]

    def check_profiles(self, vpn: str, row: Row) -> None:
        """Refuse a username whose profiles do not exist."""
        self._read(self.acl_profiles, vpn, row, "aclProfileName")
        self._read(self.client_profiles, vpn, row, "clientProfileName")

    def end_clients(self, keys: Keys) -> None:
        """Disconnect every client that has this username's account."""
        self._carry_out(self._administration.end_clients_of(*only(keys, 2)))

    def remove(self, keys: Keys) -> None:
        """Remove a username from the engine."""
        vpn, name = only(keys, 2)
        self._administration.accounts(vpn).remove(name)
        self.end_clients(keys)

    def _read(self, profiles: Rows, vpn: str, row: Row, reference: str) -> Row:
        found = profiles.read(((vpn,), (str(row[reference]),)))
        if found is None:
            raise SempFault(SempCode.NOT_FOUND, f"{reference} {row[reference]} does not exist")
        return found


class _Usernames(Rows):
    def __init__(self, accounts: AccountRows, kept: Kept) -> None:
        super().__init__(CLIENT_USERNAME.noun, kept)
        self._accounts = accounts

    def create(self, keys: Keys, row: Row) -> None:
        self._accounts.check_profiles(keys[0][0], row)
        super().create(keys, row)
        self._accounts.apply(keys)

    def change(self, keys: Keys, before: Row, row: Row) -> None:
        self._accounts.check_profiles(keys[0][0], row)
        super().change(keys, before, row)
        self._accounts.apply(keys)
        # PubSub+ disables a username while its profiles are changed, which ends its clients.
        if not row["enabled"] or any(row[name] != before[name] for name in _PROFILE_REFERENCES):
            self._accounts.end_clients(keys)

    def delete(self, keys: Keys) -> None:
        if keys[-1][0] == DEFAULT_NAME:
            raise SempFault(SempCode.NOT_ALLOWED, "client username default cannot be deleted")
        super().delete(keys)
        self._accounts.remove(keys)


class _Profiles(Rows):
    """Client profiles, or ACL profiles, which usernames refer to by the name of their key."""

    def __init__(
        self,
        accounts: AccountRows,
        kept: Kept,
        kind: ObjectType,
        code_in_use: SempCode,
        noted: Sequence[Attribute] = (),
    ) -> None:
        super().__init__(kind.noun, kept, noted)
        self._accounts = accounts
        self._reference = kind.key[0].name
        self._code_in_use = code_in_use

    def change(self, keys: Keys, before: Row, row: Row) -> None:
        super().change(keys, before, row)
        self._accounts.apply_profile(keys[0][0])

    def delete(self, keys: Keys) -> None:
        vpn, name = only(keys, 2)
        if name == DEFAULT_NAME:
            raise SempFault(SempCode.NOT_ALLOWED, f"{self._reference} default cannot be deleted")
        for username in self._accounts.enabled_usernames(vpn):
            if self._accounts.usernames.row(username)[self._reference] == name:
                raise SempFault(
                    self._code_in_use, f"{self._reference} {name} is used by client username {username[-1][0]}, enabled"
                )
        super().delete(keys)


class _AclProfiles(_Profiles):
    """With the exceptions below them."""

    def delete(self, keys: Keys) -> None:
        super().delete(keys)
        accounts = self._accounts
        for below in (accounts.connect_exceptions, accounts.publish_exceptions, accounts.subscribe_exceptions):
            below.delete_below(keys)


class _Exceptions(Rows):
    """The exceptions of one rule of ACL profiles."""

    def __init__(self, accounts: AccountRows, kept: Kept, kind: ObjectType) -> None:
        super().__init__(kind.noun, kept)
        self._accounts = accounts

    def create(self, keys: Keys, row: Row) -> None:
        super().create(keys, row)
        self._accounts.apply_profile(keys[0][0])

    def delete(self, keys: Keys) -> None:
        super().delete(keys)
        self._accounts.apply_profile(keys[0][0])


class _ConnectExceptions(_Exceptions):
    def create(self, keys: Keys, row: Row) -> None:
        (address,) = keys[-1]
        try:
            ip_network(address, strict=False)
        except ValueError:
            raise SempFault(
                SempCode.INVALID_PARAMETER,
                f"clientConnectExceptionAddress {address!r}; expected 10.0.0.0/8 or the like",
            ) from None
        super().create(keys, row)


def _topics(exceptions: Rows, place: Keys) -> tuple[str, ...]:
    # Rules for MQTT clients have no meaning here: this broker has none.
    return tuple(topic for syntax, topic in exceptions.keys(place) if syntax == "smf")
