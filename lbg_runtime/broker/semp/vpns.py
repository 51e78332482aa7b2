"""Message VPNs: the engine's, neither created nor deleted here."""

from collections.abc import Iterable

from lbg_runtime.broker.engine.administration import Administration
from lbg_runtime.broker.semp.accounts import AccountRows
from lbg_runtime.broker.semp.collection import only
from lbg_runtime.broker.semp.schema import Row
from lbg_runtime.broker.semp.target import Key, Keys


class Vpns:
    """Every way to an object begins here, so this is where a VPN gets what it has from the start."""

    def __init__(self, administration: Administration, accounts: AccountRows) -> None:
        self._administration = administration
        self._accounts = accounts

    def keys(self, above: Keys) -> Iterable[Key]:  # noqa: ARG002  # there is nothing above
        return ((name,) for name in self._administration.vpn_names())

    def read(self, keys: Keys) -> Row | None:
        (vpn,) = only(keys, 1)
        if vpn not in self._administration.vpn_names():
            return None
        self._accounts.seed(vpn)
        return {"authenticationBasicType": "internal" if self._administration.accounts(vpn).is_closed else "none"}

    def create(self, keys: Keys, row: Row) -> None:
        """VPNs are fixed."""

    def change(self, keys: Keys, before: Row, row: Row) -> None:  # noqa: ARG002  # there is one attribute
        (vpn,) = only(keys, 1)
        self._administration.accounts(vpn).is_closed = row["authenticationBasicType"] == "internal"

    def delete(self, keys: Keys) -> None:
        """VPNs are fixed."""
