"""Signatures of nodes, in two strengths: Ed25519 for real, and a keyed hash where millions are checked in a simulation.

Source: S. Josefsson, I. Liusvaara, "Edwards-Curve Digital Signature Algorithm (EdDSA)", RFC 8032, 2017.
"""

from __future__ import annotations

import hashlib
import hmac
from functools import cache
from typing import Any, Protocol

from wavetank.errors import BadValueError, missing_extra

SCHEMES = ("keyed-hash", "ed25519")


class Scheme(Protocol):
    """Signs for the nodes of one system."""

    def sign(self, node: int, content: bytes) -> bytes:
        """Return the node's signature of the content."""

    def verify(self, node: int, content: bytes, signature: bytes) -> bool:
        """Return whether the signature is the node's."""


@cache
def _secret(seed: int, node: int) -> bytes:
    return hashlib.blake2b(f"{seed}:{node}".encode(), digest_size=32).digest()


class KeyedHash:
    """A hash under a secret of the node.

    A node that verifies knows the secret, so it is a signature only as long as nobody in the process cheats: the
    adversaries here sign for their own members alone.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def sign(self, node: int, content: bytes) -> bytes:
        """Return 16 bytes."""
        return hashlib.blake2b(content, key=_secret(self._seed, node), digest_size=16).digest()

    def verify(self, node: int, content: bytes, signature: bytes) -> bool:
        """Return whether the signature is the node's."""
        return hmac.compare_digest(self.sign(node, content), signature)


class Ed25519:
    """Public-key signatures; keys follow from the seed, so this is for trials, not for secrets."""

    def __init__(self, seed: int) -> None:
        try:
            from cryptography.hazmat.primitives.asymmetric import ed25519
        except ImportError as error:
            raise missing_extra("cryptography", "protocols", needed_for="An Ed25519 signature") from error
        self._seed = seed
        self._library: Any = ed25519
        self._private: dict[int, Any] = {}
        self._public: dict[int, Any] = {}

    def _keys(self, node: int) -> tuple[Any, Any]:
        if node not in self._private:
            key = self._library.Ed25519PrivateKey.from_private_bytes(_secret(self._seed, node))
            self._private[node], self._public[node] = key, key.public_key()
        return self._private[node], self._public[node]

    def sign(self, node: int, content: bytes) -> bytes:
        """Return 64 bytes."""
        signature: bytes = self._keys(node)[0].sign(content)
        return signature

    def verify(self, node: int, content: bytes, signature: bytes) -> bool:
        """Return whether the signature is the node's."""
        from cryptography.exceptions import InvalidSignature

        try:
            self._keys(node)[1].verify(signature, content)
        except InvalidSignature:
            return False
        return True


@cache
def scheme(name: str, seed: int) -> Scheme:
    """Return a scheme by name, one object for equal arguments.

    Parameters
    ----------
    name : str
        ``keyed-hash`` or ``ed25519``, a word of :data:`SCHEMES`.
    seed : int
        Seed of the keys, at least 0; equal seeds give a node equal keys.

    Raises
    ------
    BadValueError
        For another name.
    MissingExtraError
        For ``ed25519`` without the library cryptography.
    """
    if name == "keyed-hash":
        return KeyedHash(seed)
    if name == "ed25519":
        return Ed25519(seed)
    raise BadValueError("There is no such signature scheme.", given=name, allowed=SCHEMES)
