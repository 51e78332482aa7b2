"""The administrator's session that the settings ask for."""

from contextlib import suppress
from functools import partial

from lbg_runtime.config.fields import sendable_token
from lbg_runtime.config.secret import newest
from lbg_runtime.config.semp_settings import SempSettings
from lbg_runtime.config.settings import Settings
from lbg_runtime.config.trust import trust, trust_newer
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
    tls = trust(semp.tls, "semp.tls") if semp.url.startswith("https://") else True

    def distrusted() -> None:
        # If it cannot be read, nothing is new, and who asked is told of the refusal anyway.
        with suppress(ConfigError):
            trust_newer(tls, semp.tls, "semp.tls")

    newest_account = partial(account_of, semp)
    return SempClient(account_of(semp), newest=newest_account, tls=tls, distrusted=distrusted, within_s=within_s)


def account_of(semp: SempSettings) -> SempAccount:
    """The administrator's account. Secrets in files are read anew; one that cannot be used leaves the former one."""
    token = semp.token
    if token is not None:
        with suppress(ValueError):
            token = sendable_token(newest(token))
    shown = None if token is None else token.get_secret_value()
    return SempAccount(semp.url, semp.username, newest(semp.password).get_secret_value(), shown)


def semp_missing() -> ConfigError:
    """Why nothing can be administered."""
    return ConfigError("semp", "not set", "a section with url, username and password of an administrator")
