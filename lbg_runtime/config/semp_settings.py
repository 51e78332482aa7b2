"""The administrator's account on the broker, and what an administrator says of a group besides how it is cut."""

from typing import Annotated, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from lbg_runtime.config.connection_settings import ClientPassword, ClientUsername, TlsSettings
from lbg_runtime.config.fields import Count, Secret, Section, SettingProblem, Text, management_url, sendable_token


class AccountSettings(Section):
    """A client username that a group gets."""

    username: ClientUsername
    """Of nobody else; not that of the members either."""
    password: ClientPassword = SecretStr("")
    """That it gets."""


class SempSettings(Section):
    """The administrator's account on the broker, for what changes queues and looks into them; members need none."""

    url: Annotated[str, BeforeValidator(management_url)]
    """Scheme, host and port of the management API; its VPN is `connection.vpn`."""
    username: Text = "admin"
    """The administrator's."""
    password: Secret = SecretStr("")
    """The administrator's."""
    token: Annotated[Secret, AfterValidator(sendable_token)] | None = None
    """Shown as a bearer token, instead of a name and a password."""
    tls: TlsSettings = TlsSettings()
    queue_spool_mb: Annotated[Count, Field(ge=1, le=6_000_000)] = 5_000
    """What a queue of the group may hold, in megabytes."""
    client_profile: Annotated[str, Field(min_length=1, max_length=32)] | None = None
    """An existing client profile for the group's client username; without it the group gets its own, which takes an
    administrator of the whole broker."""
    publisher: AccountSettings | None = None
    """An account for the group's publishers, which may do nothing else; without it they use that of its members."""
    conductor: AccountSettings | None = None
    """The same for `lbg group restripe`, and for commands that look at the group: status, why, dashboard, validate."""
    publish_topics: tuple[Text, ...] = ()
    """Topics, with wildcards, to which handlers publish: members may publish where the group needs it, and there."""

    @model_validator(mode="after")
    def _one_proof_of_who_it_is(self) -> Self:
        if self.token is not None and self.password.get_secret_value():
            raise SettingProblem(("token",), "given with a password", "one of the two")
        if self.token is not None and self.url.startswith("http:"):
            raise SettingProblem(("token",), "given for an address without TLS", "https:// in semp.url")
        return self
