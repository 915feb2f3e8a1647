"""Words in memory that processes or threads share: stored with release, loaded with acquire.

Who sees a word that was stored here sees everything that its writer had stored before.  Processors of x86 keep that
order for plain stores, those of ARM do not, and a compiler may change it on both; these are LLVM's atomic operations,
which hold on all of them.  A word is eight bytes, aligned to eight, and has one writer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from wavetank.sim.compiled import compiled

Words = NDArray[np.int64]


def _word(context: Any, builder: Any, kind: Any, words: Any, index: Any) -> Any:
    return builder.gep(context.make_array(kind)(context, builder, words).data, [index])


@intrinsic  # type: ignore[misc, unused-ignore]
def load_word(context: Any, words: Any, index: Any) -> Any:
    """Return a word, in compiled code.

    Parameters
    ----------
    words : int64 array (n,)
    index : int
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = _word(context, builder, signature.args[0], *arguments)
        return builder.load_atomic(word, "acquire", 8)

    return types.int64(words, types.int64), generate


@intrinsic  # type: ignore[misc, unused-ignore]
def store_word(context: Any, words: Any, index: Any, value: Any) -> Any:
    """Store a word, in compiled code.

    Parameters
    ----------
    words : int64 array (n,)
    index, value : int
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = _word(context, builder, signature.args[0], arguments[0], arguments[1])
        builder.store_atomic(arguments[2], word, "release", 8)
        return context.get_dummy_value()

    return types.void(words, types.int64, types.int64), generate


_WORDS = types.Array(types.int64, 1, "C")


@compiled(types.void(_WORDS, types.int64, types.int64))
def publish(words: Words, index: int, value: int) -> None:
    """Store a word, so that who sees it sees all that this thread stored before.

    Parameters
    ----------
    words : int64 array (n,)
        Memory that is shared.
    index, value : int
    """
    store_word(words, index, value)


@compiled(types.int64(_WORDS, _WORDS, types.int64, types.int64))
def first_below(words: Words, places: Words, value: int, looks: int) -> int:
    """Look at some words until none is below a value; return which of them still is after the last look, or -1.

    Parameters
    ----------
    words : int64 array (n,)
        Memory that is shared.
    places : int64 array (m,)
        Where the words are.
    value : int
    looks : int
        How often to look at each at most, 1 or more.
    """
    for number in range(places.size):
        left = looks
        while load_word(words, places[number]) < value:
            left -= 1
            if left <= 0:
                return number
    return -1
