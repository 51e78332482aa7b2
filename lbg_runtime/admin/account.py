"""The administrator's session that the settings ask for."""

from lbg_runtime.config.settings import Settings
from lbg_runtime.config.trust import trust
from lbg_runtime.model.errors import ConfigError
from lbg_runtime.semp.client import SempAccount, SempClient


def open_semp(settings: Settings, *, within_s: float | None = None) -> SempClient:
    """A client, to be used as a context manager; raises `ConfigError` if `semp` is not set or cannot be used, and
    otherwise as `SempClient` does.

    It connects with the first request. `within_s` is as for `SempClient`.
    """
    semp = settings.semp
    if semp is None:
        raise semp_missing()
    token = None if semp.token is None else semp.token.get_secret_value()
    account = SempAccount(semp.url, semp.username, semp.password.get_secret_value(), token)
    tls = trust(semp.tls, "semp.tls") if semp.url.startswith("https://") else True
    return SempClient(account, tls=tls, within_s=within_s)


def semp_missing() -> ConfigError:
    """Why nothing can be administered."""
    return ConfigError("semp", "not set", "a section with url, username and password of an administrator")
