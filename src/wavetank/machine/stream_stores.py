"""Whole-line stores that pass the caches by, and the fence that ends a series of them.

A plain store of a line that nobody will read soon first reads the line from memory and later evicts something useful.
A non-temporal store of all 64 bytes does neither: writing a large output costs one crossing of the memory bus, not two.

Source: LLVM Language Reference, ``!nontemporal`` metadata; the technique is that of Satish et al., "Fast Sort on CPUs
and GPUs: A Case for Bandwidth Oblivious SIMD Sort", SIGMOD 2010, and of Wassenberg and Sanders, "Engineering a
Multi-core Radix Sort", Euro-Par 2011.

Differs from the source:
1. Written as compiler intrinsics, not instructions: LLVM picks 16-, 32- or 64-byte stores by processor.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

LINE_BYTES = 64
_LINE = ir.VectorType(ir.IntType(64), LINE_BYTES // 8)


def _stream(builder: Any, line: Any, address: Any) -> None:
    store = builder.store(line, builder.inttoptr(address, _LINE.as_pointer()), align=LINE_BYTES)
    store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))


@intrinsic  # type: ignore[misc, unused-ignore]
def store_line(typing_context: Any, address: Any, word: Any) -> Any:
    """Write a 64-bit word eight times to a 64-byte line.

    Parameters
    ----------
    address : uintp
        Of the line, a multiple of 64.
    word : uint64
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        at, value = arguments
        index = ir.IntType(32)
        seed = builder.insert_element(ir.Constant(_LINE, ir.Undefined), value, ir.Constant(index, 0))
        spread = ir.Constant(ir.VectorType(index, _LINE.count), [0] * _LINE.count)
        _stream(builder, builder.shuffle_vector(seed, ir.Constant(_LINE, ir.Undefined), spread), at)
        return context.get_dummy_value()

    return types.void(types.uintp, types.uint64), generate


@intrinsic  # type: ignore[misc, unused-ignore]
def copy_line(typing_context: Any, destination: Any, source: Any) -> Any:
    """Copy 64 bytes to a line.

    Parameters
    ----------
    destination : uintp
        Address of the line, a multiple of 64.
    source : uintp
        Address of the bytes, a multiple of 8.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        at, start = arguments
        _stream(builder, builder.load(builder.inttoptr(start, _LINE.as_pointer()), align=8), at)
        return context.get_dummy_value()

    return types.void(types.uintp, types.uintp), generate


@intrinsic  # type: ignore[misc, unused-ignore]
def fence(typing_context: Any) -> Any:
    """Make this thread's streamed lines visible to the others; call it before handing the memory over."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate
