"""Maps keys of any numeric type to unsigned codes that sort alike, bit for bit and back.

Signed integers flip the sign bit.  Floats flip the sign bit when it is clear and all bits when it is set; the codes are
then rotated so that NaNs of either sign come last.  One formula with four constants serves all types, so kernels are
compiled once for each key width, not once for each type.

Source: the float mapping is folklore; see M. Herf, "Radix Tricks", 2001.

Differs from the source:
1. The rotation by the code of minus infinity, which moves negative NaNs behind the positive ones without losing bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from wavetank.sim.compiled import compiled

UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class Codec(NamedTuple):
    """The constants of the mapping for one key type; all are uint64."""

    flip: np.uint64
    """Bits that are always flipped: the sign bit, or none."""
    fold: np.uint64
    """Bits that are also flipped when the sign bit is set: all for floats, or none."""
    base: np.uint64
    """Mapped bits of the smallest key: that of minus infinity for floats, else 0."""
    top: np.uint64
    """Position of the sign bit."""
    mask: np.uint64
    """All bits of the key."""


def codec_for(dtype: DTypeLike) -> Codec:
    """Return the mapping for a boolean, integer or floating type of 1 to 8 bytes."""
    kind, bits = np.dtype(dtype).kind, 8 * np.dtype(dtype).itemsize
    mask, sign = (1 << bits) - 1, 1 << (bits - 1)
    flip, fold, base = 0, 0, 0
    if kind == "i":
        flip = sign
    elif kind == "f":
        minus_infinity = np.array(-np.inf, dtype).view(UNSIGNED[bits // 8])
        flip, fold, base = sign, mask, int(minus_infinity) ^ mask
    return Codec(*(np.uint64(constant) for constant in (flip, fold, base, bits - 1, mask)))


def identity(codec: Codec) -> Codec:
    """Return the mapping that leaves codes of the same width as they are."""
    return Codec(np.uint64(0), np.uint64(0), np.uint64(0), codec.top, codec.mask)


@compiled
def encode(bits: Any, codec: Codec) -> Any:
    """Map the bits of a key (uint64) to its code (uint64)."""
    flipped = bits ^ (((np.uint64(0) - (bits >> codec.top)) & codec.fold) | codec.flip)
    return (flipped - codec.base) & codec.mask


@compiled
def decode(code: Any, codec: Codec) -> Any:
    """Map a code (uint64) back to the bits of its key (uint64)."""
    flipped = (code + codec.base) & codec.mask
    return flipped ^ ((((flipped >> codec.top) - np.uint64(1)) & codec.fold) | codec.flip)


def decoded_bits(codes: NDArray[np.uint64], codec: Codec) -> NDArray[np.uint64]:
    """Return the bits of the keys whose codes are given."""
    bits: NDArray[np.uint64] = decode.py_func(codes, codec)
    return bits


def encoded(keys: NDArray[Any]) -> NDArray[Any]:
    """Return the codes of ``keys`` as unsigned integers of the same width; shape as given."""
    unsigned = UNSIGNED[keys.itemsize]
    return encode.py_func(keys.view(unsigned).astype(np.uint64), codec_for(keys.dtype)).astype(unsigned)


def decoded(codes: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
    """Return the keys of type ``dtype`` whose codes are given; the inverse of :func:`encoded`."""
    unsigned = UNSIGNED[np.dtype(dtype).itemsize]
    return decoded_bits(codes.astype(np.uint64), codec_for(dtype)).astype(unsigned).view(dtype)
