"""Gradients of products: what flows back through ``matmul`` are two products of the same kind.

For C = A B and the gradient G of a loss with respect to C, those with respect to A and B are G B^T and A^T G.  torch is
imported already where there are tensors; this module never imports it.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from wavetank.errors import BadValueError
from wavetank.kernels.as_array import has_tangent, is_tensor

Multiply = Callable[[Any, Any], Any]


class Asked(NamedTuple):
    """What a caller of a product asks for beside the operands."""

    out: Any
    threads: int | None
    accuracy: str | None
    scheme: Any
    levels: int
    plan: Any


def are_wanted(a: Any, b: Any, out: Any = None) -> bool:
    """Return whether a product of these operands must record gradients.

    Raises
    ------
    BadValueError
        If an operand carries a tangent of forward differentiation, which is not supported.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    for value, name in ((a, "a"), (b, "b")):
        if is_tensor(value) and has_tangent(value):
            raise BadValueError(
                "Forward differentiation is not supported.", where=name, allowed="tensors without a tangent",
                hint="torch.matmul differentiates forward; matmul differentiates backward",
            )  # fmt: skip
    return bool(torch.is_grad_enabled()) and any(
        getattr(value, "requires_grad", False) is True for value in (a, b, out)
    )


def check_constant(b: Any) -> None:
    """Refuse to prepare a matrix whose gradient would be lost."""
    if are_wanted(b, None):
        raise BadValueError(
            "A prepared matrix has no gradient.", given="a tensor that requires its gradient", where="b",
            allowed="a constant", hint=".detach() makes it one; matmul(a, b) keeps the gradient",
        )  # fmt: skip


def matmul(a: Any, b: Any, asked: Asked, multiply: Callable[..., Any]) -> Any:
    """Return the product with gradients; ``multiply`` is that without.

    Vectors and leading dimensions are brought to the form of matrices by torch, which differentiates that itself.
    """
    torch: Any = sys.modules["torch"]
    if asked.out is not None:
        raise BadValueError(
            "A result that is written into a given tensor records no gradients.", where="out", allowed="no out",
            hint="leave it out, or multiply under torch.no_grad()",
        )  # fmt: skip
    if not is_tensor(a):
        raise BadValueError(
            "A product with gradients begins with a tensor.", given=type(a).__name__, where="a",
            allowed="a tensor", hint="torch.from_numpy(a)",
        )  # fmt: skip
    options = {"threads": asked.threads, "accuracy": asked.accuracy, "scheme": asked.scheme, "levels": asked.levels}

    def plain(x: Any, y: Any) -> Any:
        if asked.plan is None:
            return multiply(x, y, **options)
        return multiply(x, y, plan=_for_sides(asked.plan, x, y))

    if not is_tensor(b) and hasattr(b, "source"):
        source = b.source if is_tensor(b.source) else torch.tensor(b.source)
        again: dict[str, Any] = {} if is_tensor(b.source) else {"threads": asked.threads}
        backward = functools.partial(multiply, **again, scheme=b.scheme, levels=1)
        rows = a if a.ndim > 1 else a.unsqueeze(0)
        found = product(rows, source, backward, lambda x, _: multiply(x, b, **options))
        return found if a.ndim > 1 else found.squeeze(-2)
    if isinstance(b, np.ndarray):
        if b.dtype not in (np.float32, np.float64) or not b.dtype.isnative:
            # Refused in the words of the product without gradients.
            return plain(a.detach(), b)
        # A copy of its own, with strides that torch knows.
        b = torch.from_numpy(np.array(b, order="C"))
    elif not is_tensor(b):
        b = torch.tensor(b)
    left, right = (a.unsqueeze(0) if a.ndim == 1 else a), (b.unsqueeze(-1) if b.ndim == 1 else b)
    if left.ndim > 2 or right.ndim > 2:
        found = _batched(torch, left, right, plain)
    else:
        found = product(left, right, plain)
    if b.ndim == 1:
        found = found.squeeze(-1)
    return found.squeeze(-1 if b.ndim == 1 else -2) if a.ndim == 1 else found


def _batched(torch: Any, left: Any, right: Any, plain: Multiply) -> Any:
    if right.ndim == 2 and left.shape[-1] == right.shape[0]:
        # One product instead of many, forward and backward.
        rows = left.reshape(math.prod(left.shape[:-1]), left.shape[-1])
        return product(rows, right, plain).reshape(*left.shape[:-1], right.shape[-1])
    try:
        batch = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    except RuntimeError:
        # Refused in the words of the product without gradients.
        return plain(left.detach(), right.detach())
    return product(left.expand(*batch, *left.shape[-2:]), right.expand(*batch, *right.shape[-2:]), plain)


def _for_sides(plan: Any, x: Any, y: Any) -> Any:
    """Return a plan for the sides of a product by the method of another plan."""
    m, k, n = int(x.shape[-2]), int(x.shape[-1]), int(y.shape[-1])
    if (m, k, n) == (plan.m, plan.k, plan.n):
        return plan
    if hasattr(plan, "tf32"):
        from wavetank.kernels.products import gpu

        return gpu.plan_of(m, k, n, plan.method, plan.scheme, dtype=plan.dtype)
    from wavetank.kernels.products.product import plan_of

    return plan_of(
        m, k, n, plan.method, plan.scheme, dtype=plan.dtype, threads=plan.threads, accuracy=plan.accuracy,
        library=plan.choice.library or "numpy",
    )  # fmt: skip


def product(left: Any, right: Any, multiply: Multiply, first: Multiply | None = None) -> Any:
    """Return the product of two tensors with equal leading dimensions, with gradients where they are wanted.

    Parameters
    ----------
    left, right : tensors, shapes (..., m, k) and (..., k, n)
    multiply : callable
        The product of two tensors, without gradients.
    first : callable, optional
        The same for these operands.
    """
    if not are_wanted(left, right) and not _is_transforming():
        return (first or multiply)(left.detach(), right.detach())
    return _function().apply(left, right, multiply, first or multiply)


def _is_transforming() -> bool:
    """Return whether a transform of torch.func is under way: it must see what becomes of its tensors."""
    active = getattr(sys.modules["torch"]._C, "_are_functorch_transforms_active", None)
    return active is not None and bool(active())


@functools.cache
def _function() -> Any:
    torch: Any = sys.modules["torch"]

    class _Product(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(left: Any, right: Any, multiply: Multiply, first: Multiply) -> Any:
            return first(left.detach(), right.detach())

        # Apart from forward, as torch.func wants it.
        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            left, right, ctx.multiply, _ = inputs
            ctx.save_for_backward(left, right)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> tuple[Any, Any, None, None]:
            left, right = ctx.saved_tensors
            # Products that record gradients themselves where those of gradients are wanted.
            to_left = product(gradient, right.mT, ctx.multiply) if ctx.needs_input_grad[0] else None
            to_right = product(left.mT, gradient, ctx.multiply) if ctx.needs_input_grad[1] else None
            return to_left, to_right, None, None

    return _Product
