"""The administrator's session that the settings ask for."""

import ssl
from pathlib import Path

from lbg_runtime.config.connection_settings import TlsSettings
from lbg_runtime.config.settings import Settings
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
    return SempClient(account, tls=_tls(semp.tls) if semp.url.startswith("https://") else True, within_s=within_s)


def semp_missing() -> ConfigError:
    """Why nothing can be administered."""
    return ConfigError("semp", "not set", "a section with url, username and password of an administrator")


def _tls(settings: TlsSettings) -> ssl.SSLContext | bool:
    if not settings.verify:
        return False
    if settings.trust_store is None:
        # Made here, because the HTTP client would take a list of authorities of its own instead of the system's.
        return ssl.create_default_context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    store = Path(settings.trust_store)
    where, expected = "semp.tls.trust_store", "a file with certificates in PEM, or a directory of such files alone"
    try:
        # A mounted Secret or ConfigMap of Kubernetes has directories in it too.
        files = [store] if store.is_file() else sorted(each for each in store.iterdir() if each.is_file())
        for file in files:
            context.load_verify_locations(file)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror or str(error)
        raise ConfigError(where, f"{settings.trust_store}: {reason}", expected) from None
    if not files:
        raise ConfigError(where, f"{settings.trust_store}: no certificate in it", expected)
    return context
