"""Certificates for one test: an authority that it trusts, one that it does not, and what they issue."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization

from lbg_runtime.broker.server.tls import TlsFiles

KEY_PASSWORD = "of-the-key"  # a test's


class Certificates:
    """Makes files below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = trustme.CA()
        self.stranger = trustme.CA()
        self.trust_store = folder / "trusted"
        self.trust_store.mkdir()
        self.authority_file = self.trust_store / "authority.pem"
        self.authority.cert_pem.write_to_path(str(self.authority_file))

    def broker(self, *names: str, stranger: bool = False, expired: bool = False, clients: bool = False) -> TlsFiles:
        """Files for a broker on `names`; by default those of this machine."""
        now = datetime.now(UTC)
        until = now - timedelta(days=1) if expired else now + timedelta(days=1)
        issued = (self.stranger if stranger else self.authority).issue_cert(
            *(names or ("127.0.0.1", "localhost")), not_before=now - timedelta(days=9), not_after=until
        )
        key, certificate = self.folder / "broker.key", self.folder / "broker.pem"
        issued.private_key_pem.write_to_path(str(key))
        certificate.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
        return TlsFiles(certificate, key, self.authority_file if clients else None)

    def client(self, name: str, *, stranger: bool = False, expired: bool = False) -> Path:
        """One file with a client's certificate and its key."""
        now = datetime.now(UTC)
        until = now - timedelta(days=1) if expired else now + timedelta(days=1)
        issued = (self.stranger if stranger else self.authority).issue_cert(
            name, common_name=name, not_before=now - timedelta(days=9), not_after=until
        )
        path = self.folder / f"{name}.pem"
        issued.private_key_and_cert_chain_pem.write_to_path(str(path))
        return path

    def encrypted_key(self, client: Path) -> Path:
        """The key of a client's file, encrypted with `KEY_PASSWORD`."""
        key = serialization.load_pem_private_key(client.read_bytes(), None)
        path = client.with_suffix(".key")
        encryption = serialization.BestAvailableEncryption(KEY_PASSWORD.encode())
        path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))
        return path
