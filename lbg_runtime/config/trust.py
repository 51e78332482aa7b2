"""Whose certificates a client of HTTPS takes."""

import ssl
from pathlib import Path

from lbg_runtime.config.connection_settings import TlsSettings
from lbg_runtime.model.errors import ConfigError


def trust(settings: TlsSettings, section: str) -> ssl.SSLContext | bool:
    """For an HTTP client: False if no certificate is to be checked. Reads files; raises a `ConfigError`.

    `section` is where the settings stand in the file.
    """
    if not settings.verify:
        return False
    if settings.trust_store is None:
        # Made here, because httpx would take a list of authorities of its own instead of the system's.
        return ssl.create_default_context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _take(context, Path(settings.trust_store), section)
    return context


def trust_newer(context: ssl.SSLContext | bool, settings: TlsSettings, section: str) -> None:
    """Have a context of `trust` take what has come into the trust store since, from the next connection on.

    What is gone from it still counts. Raises a `ConfigError`.
    """
    if isinstance(context, ssl.SSLContext) and settings.trust_store is not None:
        _take(context, Path(settings.trust_store), section)


def _take(context: ssl.SSLContext, store: Path, section: str) -> None:
    where = f"{section}.trust_store"
    expected = "a file with certificates in PEM, or a directory of such files alone"
    try:
        # A mounted Secret or ConfigMap of Kubernetes has directories in it too.
        files = [store] if store.is_file() else sorted(each for each in store.iterdir() if each.is_file())
        for file in files:
            context.load_verify_locations(file)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(where, f"{store}: {reason}", expected) from None
    if not files:
        raise ConfigError(where, f"{store}: no certificate in it", expected)
