"""A named tuple of arrays and whole numbers, lent to compiled code by its address.

A compiled function that is not inlined gets a tuple field by field: two hundred words for thirty arrays, copied at
every call, and as many arguments for the compiler to deal with.  A lent tuple is one word.  Its fields are read where
they are used, and the compiler may keep what it read, since nothing changes while it is lent.

Words keep their tuple alive, and a call keeps the words; arrays are contiguous, in C order.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.datamodel import models, register_default
from numba.core.imputils import impl_ret_borrowed, lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate
from numba.extending import infer_getattr, intrinsic
from numba.np.arrayobj import get_itemsize, make_array, populate_array
from numpy.typing import NDArray

_WORD = ir.IntType(64)


class Lent(types.Type):
    """The type of a lent tuple.

    Parameters
    ----------
    of : numba type of a named tuple
        With fields that are arrays or int64.
    """

    def __init__(self, of: Any) -> None:
        self.of = of
        super().__init__(name=f"Lent({of})")

    def place(self, field: str) -> tuple[Any, int]:
        """Return the type of a field and the number of its first word."""
        at = 0
        for name, kind in zip(self.of.fields, self.of.types, strict=True):
            if name == field:
                return kind, at
            at += 1 + (kind.ndim if isinstance(kind, types.Array) else 0)
        return None, at


def words(lent: Any) -> NDArray[np.int64]:
    """Return what a compiled function is given of a tuple: the addresses and shapes of its arrays, and its numbers.

    Parameters
    ----------
    lent : NamedTuple
        Of C-contiguous arrays and whole numbers.

    Raises
    ------
    ValueError
        If an array is not contiguous.
    """
    found: list[int] = []
    for name, value in zip(lent._fields, lent, strict=True):
        if isinstance(value, np.ndarray):
            if not value.flags.c_contiguous:
                raise ValueError(f"The array {name} is not contiguous.")
            found += [value.ctypes.data, *value.shape]
        else:
            found.append(int(value))
    given = np.array(found, np.int64)
    # The tuple stays while its words do.
    weakref.finalize(given, _nothing, lent).atexit = False
    return given


def _nothing(lent: Any) -> None:
    """Do nothing: what is registered to be called with a tuple keeps it."""


def borrower(of: Any) -> Any:
    """Return a function for compiled code that takes the words of a tuple and returns the tuple, lent.

    Parameters
    ----------
    of : numba type of the named tuple
    """
    lent = Lent(of)

    @intrinsic
    def at(typing_context: Any, given: types.Array) -> Any:
        """Return the tuple that these words are of."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array = make_array(signature.args[0])(context, builder, value=arguments[0])
            return builder.bitcast(array.data, _WORD.as_pointer())

        return lent(given), generate

    return at


@register_default(Lent)
class _Model(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, dmm: Any, fe_type: Lent) -> None:
        super().__init__(dmm, fe_type, _WORD.as_pointer())


@infer_getattr
class _Fields(AttributeTemplate):  # type: ignore[misc]
    key = Lent

    def generic_resolve(self, lent: Lent, field: str) -> Any:
        return lent.place(field)[0]


@lower_getattr_generic(Lent)
def _field(context: Any, builder: Any, lent: Lent, address: Any, field: str) -> Any:
    kind, at = lent.place(field)

    def word(number: int) -> Any:
        read = builder.load(builder.gep(address, [ir.Constant(_WORD, at + number)]))
        read.set_metadata("invariant.load", builder.module.add_metadata([]))
        return read

    if not isinstance(kind, types.Array):
        return word(0)
    array = make_array(kind)(context, builder)
    itemsize = context.get_constant(types.intp, get_itemsize(context, kind))
    shape = [word(1 + i) for i in range(kind.ndim)]
    strides = [itemsize]
    for extent in reversed(shape[1:]):
        strides.insert(0, builder.mul(strides[0], extent))
    populate_array(
        array,
        data=builder.inttoptr(word(0), array.data.type),
        shape=shape,
        strides=strides,
        itemsize=itemsize,
        meminfo=None,
    )
    return impl_ret_borrowed(context, builder, kind, array._getvalue())
