"""Arrays from what users hand in: numpy arrays, sequences of numbers, tensors of torch in main memory.

Every kernel takes the same things and refuses the same things in the same words; what a kernel wants besides, a shape
or a type, it checks itself.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError


def is_tensor(value: Any) -> bool:
    """Return whether ``value`` is a torch tensor, of a subclass too, without importing torch."""
    return any(kind.__module__.partition(".")[0] == "torch" for kind in type(value).__mro__)


def array_of(value: Any, where: str) -> NDArray[Any]:
    """Return ``value`` as an array, without a copy where it is an array or a tensor.

    Parameters
    ----------
    value : array_like or CPU tensor
        The array knows nothing of gradients, so a tensor that would record them is refused; a kernel through which
        they flow passes on what it has detached.
    where : str
        Name of the argument, for errors.

    Raises
    ------
    BadValueError
        For tensors that are not dense, not in main memory or of a type that numpy lacks, tensors whose gradient would
        be lost, sparse matrices, masked values and sequences of unequal lengths.

    Examples
    --------
    >>> array_of([[1, 2], [3, 4]], "a").shape
    (2, 2)
    """
    if is_tensor(value):
        refuse_gradients(value, where)
        return _array_of_tensor(value, where)
    # A program with a masked array has imported its module; importing it here would slow the first call of all others.
    masked = sys.modules.get("numpy.ma")
    if masked is not None and isinstance(value, masked.MaskedArray) and masked.is_masked(value):
        raise BadValueError(
            "Masked values cannot be computed with.",
            given=f"{np.count_nonzero(value.mask):,} masked of {value.size:,}",
            allowed="arrays without masked values",
            where=where,
            hint=".compressed() leaves them out, .filled(number) puts a number in their place",
        )
    if hasattr(value, "tocsr"):
        raise BadValueError(
            "A sparse matrix is not an array.",
            given=type(value).__name__,
            allowed="a dense array",
            where=where,
            hint=".toarray() makes one",
        )
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadValueError(
            "This cannot be seen as an array.",
            given=f"{type(value).__name__} ({str(error).splitlines()[0]})",
            allowed="numbers, in rows of equal length",
            where=where,
        ) from error


def target_of(value: Any, where: str) -> NDArray[Any]:
    """Return an array or a tensor that a result is written into as an array of the same memory.

    Raises
    ------
    BadValueError
        As of :func:`array_of`; for a tensor whose memory holds its entries negated or conjugated, since it would have
        to be copied; and where gradients are recorded for one that requires them.
    """
    if is_tensor(value) and (value.is_neg() or value.is_conj()):
        raise BadValueError(
            "A tensor that is only marked as negated or conjugated cannot be written into.", where=where,
            allowed="a tensor whose memory holds its entries", hint=".resolve_neg().resolve_conj() makes one",
        )  # fmt: skip
    return array_of(value, where)


def refuse_gradients(value: Any, where: str) -> None:
    """Refuse a tensor whose gradient would be lost silently: one that requires it where gradients are recorded, or that
    carries the tangent of forward differentiation."""
    if not is_tensor(value):
        return
    if value.requires_grad and sys.modules["torch"].is_grad_enabled():
        raise BadValueError(
            "No gradient flows through this tensor here.", given="a tensor that requires its gradient", where=where,
            allowed="a tensor that does not", hint=".detach(), or torch.no_grad(), says that none is wanted",
        )  # fmt: skip
    if has_tangent(value):
        raise BadValueError(
            "No gradient flows through this tensor here.", given="a tensor with a tangent (forward differentiation)",
            where=where, allowed="a tensor without one", hint="torch.autograd.forward_ad.unpack_dual(tensor).primal",
        )  # fmt: skip


def has_tangent(tensor: Any) -> bool:
    """Return whether a tensor carries a tangent of forward differentiation."""
    forward = getattr(sys.modules["torch"].autograd, "forward_ad", None)
    if forward is None or getattr(forward, "_current_level", -1) < 0:
        return False
    return forward.unpack_dual(tensor).tangent is not None


def overlaps_itself(array: NDArray[Any]) -> bool:
    """Return whether entries of an array may share memory: whether its strides do not nest."""
    if array.size == 0:
        return False
    reached = array.itemsize
    for stride, length in sorted(zip(map(abs, array.strides), array.shape, strict=True)):
        if length > 1:
            if stride < reached:
                return True
            reached += stride * (length - 1)
    return False


def _array_of_tensor(tensor: Any, where: str) -> NDArray[Any]:
    device = getattr(getattr(tensor, "device", None), "type", "cpu")
    if device != "cpu":
        raise BadValueError(
            "The tensor is not in main memory.",
            given=str(tensor.device),
            allowed="a tensor on the device cpu",
            where=where,
            hint=".cpu() copies it there",
        )
    try:
        array: NDArray[Any] = tensor.detach().resolve_conj().resolve_neg().numpy()
    except (AttributeError, RuntimeError, TypeError) as error:
        # Sparse tensors, and types that numpy lacks, such as bfloat16.
        layout = str(getattr(tensor, "layout", "")).removeprefix("torch.")
        raise BadValueError(
            "This tensor cannot be seen as an array.",
            given=f"{getattr(tensor, 'dtype', type(tensor).__name__)}{f', {layout}' if layout else ''}",
            allowed="a dense tensor of a type that numpy has",
            where=where,
            hint=".to_dense(), or .float() for bfloat16",
        ) from error
    return array
