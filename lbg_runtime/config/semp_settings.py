"""The administrator's account on the broker, and an administrator's settings for the objects of a group."""

from typing import Annotated, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from lbg_runtime.config.connection_settings import ClientPassword, ClientUsername, TlsSettings
from lbg_runtime.config.fields import (
    Count,
    Secret,
    Section,
    SettingProblem,
    Text,
    management_url,
    printable_text,
    sendable_token,
)
from lbg_runtime.model.topic import subscription_fault


def _published_topic(value: str) -> str:
    if (expected := subscription_fault(value)) is not None:
        raise ValueError(f"a topic, possibly with wildcards, {expected}")
    return value


class AccountSettings(Section, frozen=True):
    """A client username that is made for the group.

    `semp.publisher` is for the group's publishers, and may only publish; without it, they use that of its members.
    `semp.conductor` is the same for `lbg group restripe`, and for the commands that look at the group: status, why,
    dashboard, validate.
    """

    username: ClientUsername
    """A username that nobody else uses, the members included."""
    password: ClientPassword = SecretStr("")
    """Password that the account is given."""


class SempSettings(Section, frozen=True):
    """The administrator's account on the broker, for the commands that change queues or look into them.

    Members need none, except with `group.from: semp`.
    """

    url: Annotated[str, BeforeValidator(management_url)]
    """Scheme, host and port of the management API. The VPN is that of `connection.vpn`. Of a redundant pair, an address
    that leads to the broker that is active."""
    username: Text = "admin"
    """Username of the administrator."""
    password: Secret = SecretStr("")
    """Password of the administrator."""
    token: Annotated[Secret, AfterValidator(sendable_token)] | None = None
    """Bearer token, instead of username and password."""
    tls: TlsSettings = TlsSettings()
    queue_spool_mb: Annotated[Count, Field(ge=1, le=6_000_000)] = 5_000
    """How much each queue of the group may hold at least, in megabytes: `lbg group apply` raises a smaller quota, and
    never lowers one."""
    client_profile: Annotated[str, Field(min_length=1, max_length=32)] | None = None
    """Existing client profile for the group's client username. Without it, the group gets a profile of its own; only an
    administrator of the whole broker can create that."""
    publisher: AccountSettings | None = None
    """An account for the group's publishers, which may do nothing else; without it they use that of its members."""
    conductor: AccountSettings | None = None
    """The same for `lbg group restripe`, and for commands that look at the group: status, why, dashboard, validate."""
    publish_topics: tuple[Annotated[Text, AfterValidator(printable_text), AfterValidator(_published_topic)], ...] = ()
    """Topics, possibly with wildcards, that handlers publish to. Members may publish to these, and to what the group
    needs."""

    @model_validator(mode="after")
    def _one_proof_of_who_it_is(self) -> Self:
        if self.token is not None and self.password.get_secret_value():
            raise SettingProblem(("token",), "given with a password", "one of the two")
        if self.token is not None and self.url.startswith("http:"):
            raise SettingProblem(("token",), "given for an address without TLS", "https:// in semp.url")
        return self
