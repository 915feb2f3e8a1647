"""Random streams that depend on what is drawn, never on who draws first.

A stream is named by a seed and a path (``"arrivals"``, ``"router", 3``).  Equal names give equal streams on any
machine and in any process, and adding a consumer never shifts the draws of another.
"""

from __future__ import annotations

import hashlib

import numpy as np


def stream_key(seed: int, *path: str | int) -> int:
    """Return the 64-bit key of the stream named by ``seed`` and ``path``."""
    digest = hashlib.blake2b(digest_size=8)
    for part in (seed, *path):
        digest.update(f"{type(part).__name__}:{part}\n".encode())
    return int.from_bytes(digest.digest(), "little")


def stream(seed: int, *path: str | int) -> np.random.Generator:
    """Return numpy's Philox generator for the stream named by ``seed`` and ``path``.

    Parameters
    ----------
    seed : int
        The trial's seed.
    *path : str or int
        The purpose of the draws.
    """
    return np.random.Generator(np.random.Philox(key=stream_key(seed, *path)))
