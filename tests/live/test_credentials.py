"""Keys and certificates."""

from __future__ import annotations

import datetime
import ssl
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.x509.oid import NameOID

from wavetank.errors import BadFileError, MissingExtraError
from wavetank.extras import install_command
from wavetank.live.credentials import Certificate, Signatures, fingerprint, make_certificates, signing_key


def test_a_nodes_key_stays_the_same_and_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "node.key"
    first = signing_key(path)
    assert signing_key(path) == first
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert signing_key(tmp_path / "other.key") != first


def test_a_file_that_holds_no_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"short")
    with pytest.raises(BadFileError, match="no Ed25519 key"):
        signing_key(tmp_path / "key")


def test_a_signature_is_valid_for_its_node_and_text_alone(tmp_path: Path) -> None:
    keys = {node: signing_key(tmp_path / str(node)) for node in range(2)}
    signatures = Signatures({0: keys[0][0]})
    signatures.know({node: pair[1] for node, pair in keys.items()})
    signature = signatures.sign(0, b"text")
    assert signatures.valid(0, signature, b"text")
    assert not signatures.valid(0, signature, b"other")
    assert not signatures.valid(1, signature, b"text")
    assert not signatures.valid(2, signature, b"text")


def shaken(server: Certificate, client: Certificate) -> str:
    """The protocol on which two ends agree in memory; raises ssl.SSLError when they do not."""
    a, b, c, d = (ssl.MemoryBIO() for _ in range(4))
    one = server.server_context().wrap_bio(a, b, server_side=True)
    two = client.client_context().wrap_bio(c, d)
    done = set()
    for _ in range(10):
        for end in (one, two):
            try:
                end.do_handshake()
                # With TLS 1.3 a client learns only now that its certificate was refused.
                end.read(1)
            except ssl.SSLWantReadError:
                if end.version() is not None:
                    done.add(end)
            c.write(b.read())
            a.write(d.read())
    assert len(done) == 2
    return str(one.version())


def test_certificates_of_one_run_trust_each_other_and_nobody_else() -> None:
    first, second = make_certificates(2)
    [stranger] = make_certificates(1)
    assert shaken(first, second) == "TLSv1.3"
    with pytest.raises(ssl.SSLError):
        shaken(first, stranger)
    assert first.fingerprint == fingerprint(ssl.PEM_cert_to_DER_cert(first.certificate))
    assert len({first.fingerprint, second.fingerprint}) == 2


def test_given_certificates_are_read_and_checked(tmp_path: Path) -> None:
    first, second = make_certificates(2)
    names = ("certificate", "key", "authority")
    for name in names:
        (tmp_path / name).write_text(getattr(first, name))
    assert Certificate.read(*(tmp_path / name for name in names)) == first
    (tmp_path / "key").write_text(second.key)
    with pytest.raises(BadFileError, match="do not fit together"):
        Certificate.read(*(tmp_path / name for name in names))
    with pytest.raises(BadFileError, match="cannot be read"):
        Certificate.read(tmp_path / "nothing", tmp_path / "key", tmp_path / "authority")


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives", None)
    with pytest.raises(MissingExtraError) as caught:
        signing_key(tmp_path / "key")
    assert caught.value.hint == install_command("protocols")


class Authority:
    """Issues certificates with the faults that people's certificates have."""

    def __init__(self) -> None:
        self.key = ed25519.Ed25519PrivateKey.generate()
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an authority")])

    def issued(self, folder: Path, *, from_days: int = -1, to_days: int = 30, passphrase: bytes = b"") -> list[Path]:
        now = datetime.datetime.now(datetime.UTC)
        key = ed25519.Ed25519PrivateKey.generate()

        def certificate(name: x509.Name, public: Any, days: tuple[int, int], *, authority: bool) -> bytes:
            builder = (
                x509.CertificateBuilder()
                .subject_name(name)
                .issuer_name(self.name)
                .public_key(public)
                .serial_number(x509.random_serial_number())
                .not_valid_before(now + datetime.timedelta(days=days[0]))
                .not_valid_after(now + datetime.timedelta(days=days[1]))
                .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            )
            return builder.sign(self.key, None).public_bytes(serialization.Encoding.PEM)

        own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a node")])
        encryption = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
        secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        texts = (
            certificate(own, key.public_key(), (from_days, to_days), authority=False),
            secret,
            certificate(self.name, self.key.public_key(), (-1, 30), authority=True),
        )
        paths = [folder / name for name in ("cert.pem", "key.pem", "ca.pem")]
        for path, text in zip(paths, texts, strict=True):
            path.write_bytes(text)
        return paths


@pytest.mark.parametrize(
    ("faults", "says"),
    [
        ({}, ""),
        ({"from_days": -9, "to_days": -2}, "expired"),
        ({"from_days": 5}, "not yet valid"),
        ({"passphrase": b"secret"}, "passphrase"),
    ],
    ids=["fine", "expired", "not yet valid", "passphrase"],
)
def test_what_nodes_would_not_trust_is_refused_at_reading(tmp_path: Path, faults: dict[str, Any], says: str) -> None:
    paths = Authority().issued(tmp_path, **faults)
    if not says:
        Certificate.read(*paths)
        return
    with pytest.raises(BadFileError) as caught:
        Certificate.read(*paths)
    assert says in str(caught.value)
    assert "--tls-files" in str(caught.value)


def test_a_certificate_of_another_authority_or_swapped_files_are_reported(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    certificate, key, authority = Authority().issued(tmp_path / "one")
    _, _, other = Authority().issued(tmp_path / "other")
    with pytest.raises(BadFileError, match="would not trust"):
        Certificate.read(certificate, key, other)
    with pytest.raises(BadFileError, match="holds the wrong content") as caught:
        Certificate.read(key, certificate, authority)
    assert caught.value.where == str(key)
    with pytest.raises(BadFileError, match="holds the wrong content"):
        Certificate.read(certificate, certificate, authority)
