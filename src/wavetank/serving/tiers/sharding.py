"""How many bytes weights and caches take, and how many of them move when the tensor-parallel degree changes.

With a full copy of the weights on every GPU nothing of them moves: a kernel reads another slice.  Keys and values are
divided by heads among the GPUs of a group; where groups are nested, each GPU keeps the heads that it still needs.
"""

from __future__ import annotations

from collections.abc import Sequence

from wavetank.errors import BadValueError
from wavetank.platforms.catalog import Model, as_model


def weight_bytes(parameters: float, bytes_per_parameter: float = 2.0) -> float:
    """Return the bytes of one full copy of the weights.

    Examples
    --------
    >>> weight_bytes(13e9)
    26000000000.0
    """
    return parameters * bytes_per_parameter


def stored_slices_bytes(parameters: float, degrees: Sequence[int], bytes_per_parameter: float = 2.0) -> float:
    """Return what each GPU holds where the slices of every degree are stored, in place of one full copy.

    Examples
    --------
    >>> stored_slices_bytes(13e9, (1, 2, 4))
    45500000000.0
    """
    return sum(weight_bytes(parameters, bytes_per_parameter) / degree for degree in degrees)


def check_degree(model: str | Model, degree: int) -> None:
    """Raise unless the KV heads divide evenly among the GPUs of a group.

    Raises
    ------
    BadValueError
        Above the number of KV heads a GPU would hold a copy of another's head: such degrees are refused.
    """
    heads = as_model(model).kv_heads
    if isinstance(degree, bool) or not isinstance(degree, int) or degree < 1 or heads % degree:
        raise BadValueError(
            f"The {heads} KV heads of {as_model(model).name} do not divide among this number of GPUs.", given=degree,
            allowed=[str(n) for n in range(1, heads + 1) if heads % n == 0],
        )  # fmt: skip


def moved_share(before: int, after: int) -> float:
    """Return the share of a request's KV cache that moves between nested groups of two degrees.

    Examples
    --------
    >>> moved_share(1, 4), moved_share(4, 2), moved_share(2, 2)
    (0.75, 0.5, 0.0)
    """
    return 1.0 - min(before, after) / max(before, after)


def moved_bytes(model: str | Model, tokens: int, before: int, after: int) -> float:
    """Return the bytes of a request's KV cache that move when its group's degree changes.

    Parameters
    ----------
    model : str or Model
    tokens : int
        In the cache.
    before, after : int
        Degrees; both must divide the KV heads.
    """
    check_degree(model, before)
    check_degree(model, after)
    return tokens * as_model(model).kv_bytes_per_token * moved_share(before, after)
