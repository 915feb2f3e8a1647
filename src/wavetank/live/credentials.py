"""Keys and certificates of a cluster: Ed25519 keys that sign frames, X.509 certificates for TLS.

A node's key is made by the process of the node and stays there; certificates are made by the launcher for one run.
``cryptography`` does the work and is needed only where signatures or TLS are asked for.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import re
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wavetank.errors import BadFileError, missing_extra

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_DAYS = 30
_KEY_BYTES = 32
_CERTIFICATE, _PRIVATE_KEY = "CERTIFICATE", "[A-Z ]*PRIVATE KEY"
_AUTHORITY = "wavetank cluster"


def _primitives() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise missing_extra("cryptography", "protocols", needed_for="Signing or encrypting what nodes send") from None
    return ed25519, serialization


def signing_key(path: Path) -> tuple[bytes, bytes]:
    """Return a node's raw private and public Ed25519 key, 32 bytes each.

    The private one is made at the first call and kept in a file that its owner alone can read, so that a node that
    comes back is who it was.  It never leaves the process.

    Raises
    ------
    BadFileError
        If the file holds no key.
    """
    ed25519, serialization = _primitives()
    if path.exists():
        private = path.read_bytes()
        if len(private) != _KEY_BYTES:
            raise BadFileError("The file holds no Ed25519 key.", given=f"{len(private)} bytes", where=str(path))
        key = ed25519.Ed25519PrivateKey.from_private_bytes(private)
    else:
        key = ed25519.Ed25519PrivateKey.generate()
        private = key.private_bytes(
            serialization.Encoding.Raw, serialization.PrivateFormat.Raw, serialization.NoEncryption()
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.{os.getpid()}.new")
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:  # noqa: PTH123
            file.write(private)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    return private, key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)


class Signatures:
    """Signs for the nodes of one endpoint and verifies for all.

    Parameters
    ----------
    private : mapping
        Raw private keys of the nodes this endpoint speaks for.
    """

    def __init__(self, private: Mapping[int, bytes]) -> None:
        ed25519, _ = _primitives()
        self._private: dict[int, Ed25519PrivateKey] = {
            node: ed25519.Ed25519PrivateKey.from_private_bytes(raw) for node, raw in private.items()
        }
        self._public: dict[int, Ed25519PublicKey] = {}

    def know(self, public: Mapping[int, bytes]) -> None:
        """Learn the raw public keys of nodes."""
        ed25519, _ = _primitives()
        self._public |= {node: ed25519.Ed25519PublicKey.from_public_bytes(raw) for node, raw in public.items()}

    def knows(self, node: int) -> bool:
        """Return whether the public key of a node is known."""
        return node in self._public

    def sign(self, node: int, text: bytes) -> bytes:
        """Return 64 bytes."""
        return self._private[node].sign(text)

    def valid(self, node: int, signature: bytes, text: bytes) -> bool:
        """Return whether the node signed the text."""
        from cryptography.exceptions import InvalidSignature

        key = self._public.get(node)
        if key is None:
            return False
        try:
            key.verify(signature, text)
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """A certificate with its key and the authority that both ends trust, all in PEM."""

    certificate: str
    key: str
    authority: str

    @classmethod
    def read(cls, certificate: Path, key: Path, authority: Path) -> Certificate:
        """Read the three from files; raises BadFileError when one is missing or does not fit."""
        texts = []
        for path, mark in ((certificate, _CERTIFICATE), (key, _PRIVATE_KEY), (authority, _CERTIFICATE)):
            try:
                text = path.read_text()
            except OSError as error:
                reason = error.strerror or str(error)
                raise BadFileError(f"A TLS file cannot be read: {reason}.", where=str(path)) from error
            except UnicodeDecodeError as error:
                raise BadFileError("A TLS file holds no text.", allowed="PEM", where=str(path)) from error
            if not re.search(f"-----BEGIN {mark}-----", text):
                held = re.search("-----BEGIN ([A-Z0-9 ]+)-----", text)
                raise BadFileError(
                    "A TLS file holds the wrong content.",
                    given=held[1] if held else "no PEM",
                    allowed=mark.replace("[A-Z ]*", ""),
                    where=str(path),
                    hint="--tls-files takes CERT,KEY,CA in this order",
                )
            texts.append(text)
        found = cls(certificate=texts[0], key=texts[1], authority=texts[2])
        found._check(certificate)
        return found

    def _check(self, path: Path) -> None:
        """Shake hands with itself, as two nodes of a run do: dates, chain and purpose of the certificate."""
        client, server = self.client_context(), self.server_context()
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        ends = [
            client.wrap_bio(to_client, to_server, server_side=False),
            server.wrap_bio(to_server, to_client, server_side=True),
        ]
        # Each turn moves what one end has said to the other; a handshake takes three.
        for _ in range(4):
            for end in ends:
                try:
                    end.do_handshake()
                except ssl.SSLWantReadError:
                    continue
                except ssl.SSLError as error:
                    says = getattr(error, "verify_message", "") or error.reason or str(error)
                    raise BadFileError(
                        "Nodes would not trust this certificate.",
                        given=says,
                        where=str(path),
                        hint="--tls-files takes CERT,KEY,CA: a valid certificate, its key, and the authority of both",
                    ) from error

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the certificate, in hex."""
        return fingerprint(ssl.PEM_cert_to_DER_cert(self.certificate))

    def server_context(self) -> ssl.SSLContext:
        """Return what a listener needs; it demands a certificate of the same authority from who connects."""
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def client_context(self) -> ssl.SSLContext:
        """Return what a connecting node needs."""
        context = self._context(ssl.PROTOCOL_TLS_CLIENT)
        # Nodes are known by the run's own authority; their addresses change with every restart.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def control_context(self) -> ssl.SSLContext:
        """Return what the launcher's control port needs; who joins proves the token and has no certificate yet."""
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_NONE
        return context

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            # Python loads a key from a file alone; this one is readable by its owner and gone at once.
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
                file.write(f"{self.certificate.rstrip()}\n{self.key}")
                file.flush()
                context.load_cert_chain(file.name, password=_no_passphrase)
            context.load_verify_locations(cadata=self.authority)
        except (ssl.SSLError, ValueError) as error:
            raise BadFileError(
                "Certificate, key and authority do not fit together.", given=str(error), where="--tls-files"
            ) from error
        return context


def _no_passphrase() -> str:
    # Asked for only when the key is encrypted; without this OpenSSL would ask on the terminal.
    raise BadFileError(
        "The key is protected by a passphrase.",
        allowed="a key without one, readable by its owner alone",
        where="--tls-files",
        hint="openssl pkey -in KEY -out PLAIN",
    )


def pinned_context() -> ssl.SSLContext:
    """Return what a joining host needs: it compares the launcher's fingerprint with its token by itself."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def fingerprint(der: bytes | None) -> str:
    """Return the SHA-256 of a certificate in DER form, in hex."""
    return hashlib.sha256(der or b"").hexdigest()


def make_certificates(count: int) -> list[Certificate]:
    """Return ``count`` certificates of a new authority, whose key is forgotten at once."""
    ed25519, serialization = _primitives()
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    now = datetime.datetime.now(datetime.UTC)

    def issued(name: str, public: Any, issuer: str, signer: Any, *, authority: bool) -> Any:
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=_DAYS))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=0 if authority else None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(root.public_key()), critical=False)
        )
        usage = dict.fromkeys(
            ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "crl_sign",
             "encipher_only", "decipher_only"), False,
        )  # fmt: skip
        usage |= {"digital_signature": True, "key_cert_sign": authority}
        return builder.add_extension(x509.KeyUsage(**usage), critical=True).sign(signer, None)

    def pem(certificate: Any) -> str:
        text: str = certificate.public_bytes(serialization.Encoding.PEM).decode()
        return text

    root = ed25519.Ed25519PrivateKey.generate()
    authority = pem(issued(_AUTHORITY, root.public_key(), _AUTHORITY, root, authority=True))
    found = []
    for number in range(count):
        key = ed25519.Ed25519PrivateKey.generate()
        certificate = issued(f"process {number}", key.public_key(), _AUTHORITY, root, authority=False)
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        found.append(Certificate(certificate=pem(certificate), key=secret.decode(), authority=authority))
    return found
