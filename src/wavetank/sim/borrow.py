"""Arrays without reference counts for compiled inner loops.

numba counts references to every array that a compiled function takes out of a tuple, with atomic instructions; in a
loop of short calls that is half of the time.  A borrowed array has no counter: the borrower guarantees that the
owner outlives the borrowed array, which holds for the arguments of a call.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic


@intrinsic
def borrowed(typing_context: Any, array: types.Array) -> Any:
    """Return the same array, memory shared, not counted as a reference to it.

    Parameters
    ----------
    typing_context : numba typing context
        Given by the compiler.
    array : numba array type
        Any number type, rank and layout.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        struct = context.make_array(signature.args[0])(context, builder, value=arguments[0])
        struct.meminfo = ir.Constant(struct.meminfo.type, None)
        struct.parent = ir.Constant(struct.parent.type, None)
        return struct._getvalue()

    return array(array), generate
