"""The section `sidecar` of config.yaml."""

import re
from enum import Enum
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from lbg_runtime.config.connection_settings import TlsSettings
from lbg_runtime.config.fields import (
    Count,
    PositiveDurationMs,
    Secret,
    Section,
    SettingProblem,
    Text,
    off_or_address,
    sendable_token,
)
from lbg_runtime.config.listen_address import ListenAddress, is_encodable
from lbg_runtime.model.topic import subscription_fault


def _application_address(value: object) -> object:
    pattern = r"https?://[^\s/@?#\\]+(/[^\s?#]*)?|unix:/[^\s?#]+"
    if not isinstance(value, str) or re.fullmatch(pattern, value) is None or not _has_host(value):
        raise ValueError("an address such as http://127.0.0.1:3000 or unix:/run/application.sock")
    return value.rstrip("/")


def _has_host(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        return parts.scheme == "unix" or (host != "" and is_encodable(host) and parts.port != 0)
    except ValueError:  # the port, or the brackets
        return False


def _subscribed_topic(value: str) -> str:
    if (expected := subscription_fault(value)) is not None:
        raise ValueError(f"a topic subscription, {expected}")
    return value


class ContentMode(Enum):
    """How an event is placed in a request, in the terms of CloudEvents."""

    STRUCTURED = "structured"
    """Attributes and data in one JSON object."""
    BINARY = "binary"
    """Attributes in headers, the data unchanged in the body."""


class ApplicationHealthSettings(Section, frozen=True):
    """When the application counts as available. While it does not, nothing is sent to it."""

    path: Text | None = None
    """Path that the application answers with 2xx while it is healthy. Without a path, accepting connections is
    enough."""
    interval_ms: Annotated[PositiveDurationMs, Field(alias="interval")] = 5_000
    """Time between two checks."""


class SubscriptionSettings(Section, frozen=True):
    """Events that are sent to the application without its asking for them."""

    topic: Annotated[Text, AfterValidator(_subscribed_topic)]
    """Original topic, without hash prefix and shard; wildcards are allowed."""
    route: Text
    """Path of the application to which the events are posted."""
    content_mode: ContentMode = ContentMode.STRUCTURED


class SidecarSettings(Section, frozen=True):
    """An application in a process of its own: messages are delivered to it over HTTP, instead of to handlers."""

    application: Annotated[str, BeforeValidator(_application_address)] | None = None
    """Address at which the application listens. Without one, the application pulls its events."""
    application_token: Annotated[Secret, AfterValidator(sendable_token)] | None = None
    """Token that is shown to the application with every request."""
    tls: TlsSettings = TlsSettings()
    listen: Annotated[ListenAddress | None, BeforeValidator(off_or_address)] = ListenAddress("127.0.0.1", 3500)
    """Address at which the application publishes and pulls. None, in the file `off`: no such address."""
    token: Annotated[Secret, AfterValidator(sendable_token)] | None = None
    """Token that the application shows at `listen`; required if that is not on loopback."""
    max_body_kb: Annotated[Count, Field(ge=1, le=30 * 1024)] = 4 * 1024
    """Largest body of a request of the application, in units of 1,024 bytes."""
    health: ApplicationHealthSettings = ApplicationHealthSettings()
    subscriptions: tuple[SubscriptionSettings, ...] = ()
    """These come before the ones that the application names itself (`GET /dapr/subscribe`)."""

    @model_validator(mode="after")
    def _is_of_use(self) -> Self:
        if self.listen is None and self.application is None:
            raise SettingProblem(("application",), "not set", "an address, or `listen` for an application that pulls")
        if self.application is None and self.subscriptions:
            raise SettingProblem(
                ("subscriptions",), "given without an application", "none for an application that pulls"
            )
        if self.listen is not None and not self.listen.is_loopback and self.token is None:
            raise SettingProblem(
                ("listen",),
                f"{self.listen}, and no sidecar.token",
                "an address on loopback, such as 127.0.0.1:3500, or a token",
            )
        return self
