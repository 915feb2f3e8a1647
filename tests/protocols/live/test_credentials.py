"""Keys and certificates."""

from __future__ import annotations

import ssl
import stat
import sys
from pathlib import Path

import pytest

from wavetank.errors import BadFileError, MissingExtraError
from wavetank.protocols.live.credentials import Certificate, Signatures, fingerprint, make_certificates, signing_key


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
    assert caught.value.hint == "pip install 'wavetank[protocols]'"
