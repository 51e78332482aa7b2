"""How both sides of a session show who they are."""

from typing import Any

import pytest

from lbg_runtime.config.load import parse_settings
from lbg_runtime.config.settings import Settings
from lbg_runtime.model.errors import ConfigError

GROUP = {"name": "orders", "hash_prefix": "h", "hash_count": 4, "queue_count": 2}
SECURED = {"transport": "solace", "host": "tcps://a:55443", "tls": {"trust_store": "/trusted"}}
OAUTH = {"token_file": "/run/token"}
CERTIFICATE = {"certificate": "/run/client.pem"}


def _parse(**connection: Any) -> Settings:
    return parse_settings({"group": GROUP, "connection": connection}, "test", {"HUSH": "hush"})


def test_who_works_from_outside_comes_as_the_conductor_where_there_is_one() -> None:
    certificate = {**SECURED, "client_certificate": CERTIFICATE, "username": "members", "client_name": "of-a-member"}
    plain = _parse(**certificate).outside_connection
    assert (plain.username, plain.client_name, plain.client_certificate is None) == ("members", None, False)
    semp = {"url": "https://b:1", "conductor": {"username": "conductor", "password": "${HUSH}"}}
    settings = parse_settings({"group": GROUP, "connection": certificate, "semp": semp}, "test", {"HUSH": "hush"})
    outside = settings.outside_connection
    assert (outside.username, outside.password.get_secret_value()) == ("conductor", "hush")
    assert (outside.client_certificate, outside.oauth) == (None, None)


@pytest.mark.parametrize("proof", [{"client_certificate": CERTIFICATE}, {"oauth": OAUTH}])
def test_a_conductor_without_a_password_shows_what_the_connection_shows(proof: dict[str, Any]) -> None:
    """With neither it would log in with an empty password, and be refused."""
    semp = {"url": "https://b:1", "conductor": {"username": "conductor"}}
    settings = parse_settings({"group": GROUP, "connection": {**SECURED, **proof}, "semp": semp}, "test", {})
    outside, own = settings.outside_connection, settings.connection
    assert (outside.client_certificate, outside.oauth) == (own.client_certificate, own.oauth)
    assert outside.username == "conductor"


def test_a_password_a_certificate_or_a_token() -> None:
    assert _parse(**SECURED, username="ann", password="p").connection.oauth is None
    certificate = _parse(**SECURED, client_certificate={**CERTIFICATE, "key_password": "${HUSH}"})
    assert certificate.connection.client_certificate is not None
    assert certificate.connection.client_certificate.key_password.get_secret_value() == "hush"
    assert "hush" not in repr(certificate)
    assert _parse(**SECURED, oauth=OAUTH).connection.oauth is not None


@pytest.mark.parametrize(
    ("connection", "problem"),
    [
        ({**SECURED, "oauth": OAUTH, "client_certificate": CERTIFICATE}, "oauth: given with client_certificate"),
        ({**SECURED, "oauth": OAUTH, "password": "p"}, "oauth: given with a password; expected one of the two"),
        ({**SECURED, "client_certificate": CERTIFICATE, "password": "p"}, "client_certificate: given with a password"),
        ({**SECURED, "host": "tcp://a:1", "oauth": OAUTH}, "oauth: given for a host without TLS; expected tcps://"),
        ({**SECURED, "host": "tcps://a:1,b:2", "oauth": OAUTH}, "oauth: given for a host without TLS"),
        ({**SECURED, "tls": {}}, "tls.trust_store: not set, for a host with TLS; expected a directory"),
        ({**SECURED, "host": "tcps://a:1,b:2", "tls": {}}, "tls.trust_store: not set, for a host with TLS"),
        ({**SECURED, "oauth": {}}, "oauth.token_file: not set"),
        ({"password": "hush" * 33}, "password: 132 bytes; expected at most 128"),
        ({**SECURED, "client_certificate": {"key_password": ["hush"]}}, "key_password: a value that is not shown"),
        (
            {**SECURED, "client_certificate": {**CERTIFICATE, "key_password": "hush" * 257}},
            "key_password: 1028 bytes; expected at most 1024",
        ),
        ({"password": "hush\0tail"}, "password: a value that is not shown; expected a secret without zero characters"),
        ({"vpn": "ä" * 16 + "x"}, "vpn: 33 bytes; expected at most 32"),
        ({"username": "ä" * 95}, "username: 190 bytes; expected at most 189"),
        ({"username": "ann\u200b"}, r"username: 'ann\u200b'; expected printable characters"),
        # With the zero behind it the broker's answer has 160, and the client takes no more.
        ({"client_name": "x" * 160}, "client_name: 160 bytes; expected at most 159"),
        ({"client_name": "ä" * 80}, "client_name: 160 bytes; expected at most 159"),
        ({"vpn": "a\0b"}, r"vpn: 'a\x00b'; expected a text without control characters"),
        ({"username": "a\nb"}, r"username: 'a\nb'; expected a text without control characters"),
        ({"client_name": "a*b"}, "client_name: 'a*b'; expected a client name: printable characters, and none of * >"),
        (
            {"client_name": "a\xa0b"},
            r"client_name: 'a\xa0b'; expected a client name: printable characters, and none of",
        ),
        ({"client_name": "a\0b"}, r"client_name: 'a\x00b'; expected a text without control characters"),
        ({"host": "tcp://a\0b"}, r"host.0: 'tcp://a\x00b'; expected a text without control characters"),
        ({"tls": {"trust_store": "a\0b"}}, r"tls.trust_store: 'a\x00b'; expected a text without control characters"),
        ({**SECURED, "oauth": {"token_file": "a\0b"}}, r"oauth.token_file: 'a\x00b'; expected a text without"),
    ],
)
def test_what_would_give_a_secret_away_or_means_nothing_is_refused(connection: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _parse(**connection)
    assert f"test: connection.{problem}" in str(caught.value).replace("client_certificate.key_pass", "key_pass")
    assert "hush" not in str(caught.value)


PRIVATE_KEY = "-----BEGIN PRIVATE KEY-----\nhush\n-----END PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    ("proof", "where"),
    [
        ({"client_certificate": {"certificate": PRIVATE_KEY}}, "client_certificate.certificate"),
        ({"client_certificate": {"certificate": "c", "key": PRIVATE_KEY}}, "client_certificate.key"),
        # As YAML folds its lines into one.
        ({"client_certificate": {"certificate": "c", "key": PRIVATE_KEY.replace("\n", " ")}}, "client_certificate.key"),
        ({"oauth": {"token_file": "eyJhbGciOiJSUzI1NiJ9.eyJodXNo.hush-hush_\n"}}, "oauth.token_file"),
    ],
)
def test_a_key_or_a_token_in_the_place_of_its_files_path_is_not_shown(proof: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _parse(**{**SECURED, **proof})
    assert str(caught.value) == f"test: connection.{where}: what the file is to hold; expected the path of the file"


@pytest.mark.parametrize(
    ("account", "problem"),
    [
        ({"username": "u" * 190}, "username: 190 bytes; expected at most 189"),
        ({"username": "u", "password": "hush" * 33}, "password: 132 bytes; expected at most 128"),
    ],
)
def test_an_account_that_a_client_could_not_use_is_refused(account: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_settings({"group": GROUP, "semp": {"url": "https://b:1", "publisher": account}}, "test", {})
    assert str(caught.value) == f"test: semp.publisher.{problem}"
