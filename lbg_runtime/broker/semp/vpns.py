"""Message VPNs: those of the engine, neither created nor deleted here."""

from collections.abc import Iterable

from lbg_runtime.broker.engine.administration import Administration
from lbg_runtime.broker.semp.accounts import AccountRows
from lbg_runtime.broker.semp.collection import Kept, keep_row, only
from lbg_runtime.broker.semp.fault import SempFault
from lbg_runtime.broker.semp.objects import NOTED_VPN_ATTRIBUTES, VPN
from lbg_runtime.broker.semp.schema import Row
from lbg_runtime.broker.semp.target import Key, Keys
from lbg_runtime.model.semp_code import SempCode


class Vpns:
    """Every path to an object begins here, so this is where a VPN gets its initial objects."""

    def __init__(self, administration: Administration, accounts: AccountRows, kept: Kept) -> None:
        self._kept = kept
        self._administration = administration
        self._accounts = accounts
        self._said: dict[Keys, Row] = {}
        """What administrators have changed of each VPN; in all else it is as its broker was started."""

    def keys(self, above: Keys) -> Iterable[Key]:  # noqa: ARG002  # there is nothing above
        return ((name,) for name in self._administration.vpn_names())

    def read(self, keys: Keys) -> Row | None:
        (vpn,) = only(keys, 1)
        if vpn not in self._administration.vpn_names():
            return None
        self._accounts.seed(vpn)
        accounts = self._administration.accounts(vpn)
        said = self._said.get(keys, {})
        return {
            **{each.name: said.get(each.name, each.default) for each in NOTED_VPN_ATTRIBUTES},
            "enabled": True,
            "authenticationBasicType": "internal" if accounts.is_closed else "none",
            "authenticationBasicEnabled": accounts.takes_passwords,
            "authenticationClientCertEnabled": accounts.takes_certificates,
        }

    def create(self, keys: Keys, row: Row) -> None:
        """VPNs are fixed."""

    def change(self, keys: Keys, before: Row, row: Row) -> None:
        changed = {name: value for name, value in row.items() if value != before[name]}
        if "enabled" in changed:
            raise SempFault(SempCode.NOT_SUPPORTED, "enabled: a message VPN is not shut down here")
        self._set(keys, changed)
        self._said[keys] = self._said.get(keys, {}) | changed
        keep_row(self._kept, VPN.noun, keys, self._said[keys])

    def restore(self, keys: Keys, row: Row) -> None:
        """Set a VPN to what an already kept row says."""
        self._said[keys] = row
        self._set(keys, row)

    def delete(self, keys: Keys) -> None:
        """VPNs are fixed."""

    def _set(self, keys: Keys, row: Row) -> None:
        (vpn,) = only(keys, 1)
        accounts = self._administration.accounts(vpn)
        if "authenticationBasicType" in row:
            accounts.is_closed = row["authenticationBasicType"] == "internal"
        if "authenticationBasicEnabled" in row:
            accounts.takes_passwords = row["authenticationBasicEnabled"] is True
        if "authenticationClientCertEnabled" in row:
            accounts.takes_certificates = row["authenticationClientCertEnabled"] is True
