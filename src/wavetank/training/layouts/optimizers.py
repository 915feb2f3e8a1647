"""Optimisers of the parts that a rank holds: SGD, AdamW, Adam with 8-bit states, and Muon, which needs whole matrices.

Each works on arrays of the elements that are here and keeps its state by kind and tensor, so that a checkpoint can be
read on any number of ranks.  The 8-bit states have one scale a block: since no block is cut, every rank computes what
one process alone would, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wavetank.settings import setting
from wavetank.training.layouts.interface import Tensor

Floats = npt.NDArray[np.float64]
State = dict[str, npt.NDArray[Any]]
# Turns the part of a gradient into the whole matrix on its root (elsewhere None), and an update back into the part.
ToRoot = Callable[[int, Floats], Floats | None]
FromRoot = Callable[[int, Floats | None], Floats]
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


class Part(NamedTuple):
    """What is here of a tensor.

    Parameters
    ----------
    number : int
        Of the tensor, among all of the model.
    tensor : Tensor
    start : int
        Its first element that is here; the beginning of a block.
    weights, gradient : float64 array (n,)
    state : dict of str to array
        By kind; empty at the first step.
    """

    number: int
    tensor: Tensor
    start: int
    weights: Floats
    gradient: Floats
    state: State


@dataclass(frozen=True, kw_only=True)
class Sgd:
    """Gradient descent with momentum, in place.

    An optimiser has ``kinds(tensor)``, the kinds of its states with their type and whether there is one for every
    element, block or matrix, and ``update(part, step)``.
    """

    lr: float = setting(0.05, says="Learning rate", low=0.0, high=10.0)
    momentum: float = setting(0.9, says="Momentum", low=0.0, high=1.0)

    def kinds(self, tensor: Tensor) -> dict[str, tuple[str, str]]:
        """Return type and grain of each state.

        Parameters
        ----------
        tensor : Tensor
        """
        return {"momentum": ("<f8", "element")}

    def update(self, part: Part, step: int) -> None:
        """Change weights and state.

        Parameters
        ----------
        part : Part
        step : int
            From 1.
        """
        moving = part.state["momentum"]
        moving *= self.momentum
        moving += part.gradient
        part.weights[:] -= self.lr * moving


@dataclass(frozen=True, kw_only=True)
class AdamW:
    """Adam with decoupled weight decay, in place."""

    lr: float = setting(0.01, says="Learning rate", low=0.0, high=10.0)
    beta1: float = setting(0.9, says="Of the first moment", low=0.0, high=0.999999)
    beta2: float = setting(0.99, says="Of the second moment", low=0.0, high=0.999999)
    epsilon: float = setting(1e-8, says="Added to the root of the second moment", low=1e-30, high=1.0)
    decay: float = setting(0.01, says="Weight decay", low=0.0, high=1.0)

    def kinds(self, tensor: Tensor) -> dict[str, tuple[str, str]]:
        """Return type and grain of each state.

        Parameters
        ----------
        tensor : Tensor
        """
        return {"first": ("<f8", "element"), "second": ("<f8", "element")}

    def update(self, part: Part, step: int) -> None:
        """Change weights and state.

        Parameters
        ----------
        part : Part
        step : int
            From 1.
        """
        first, second = part.state["first"], part.state["second"]
        first[:] = self.beta1 * first + (1 - self.beta1) * part.gradient
        second[:] = self.beta2 * second + (1 - self.beta2) * part.gradient**2
        self.apply(part, step, first, second)

    def apply(self, part: Part, step: int, first: Floats, second: Floats) -> None:
        """Change weights by moments.

        Parameters
        ----------
        part : Part
        step : int
        first, second : float64 array (n,)
        """
        part.weights[:] *= 1 - self.lr * self.decay
        root = np.sqrt(second) / np.sqrt(1 - self.beta2**step)
        part.weights[:] -= self.lr / (1 - self.beta1**step) * (first / (root + self.epsilon))


@dataclass(frozen=True, kw_only=True)
class Adam8(AdamW):
    """AdamW whose moments are bytes with one scale a block.

    The root of the second moment is kept, rounded up: a step is never longer because of it, and a small moment beside a
    large one does not become nothing to divide by.

    References
    ----------
    T. Dettmers and others, "8-bit Optimizers via Block-wise Quantization", arXiv 2110.02861; levels are linear here.
    """

    def kinds(self, tensor: Tensor) -> dict[str, tuple[str, str]]:
        """Return type and grain of each state.

        Parameters
        ----------
        tensor : Tensor
        """
        return {
            "first": ("|i1", "element"), "first scale": ("<f8", "block"),
            "root": ("|u1", "element"), "root scale": ("<f8", "block"),
        }  # fmt: skip

    def update(self, part: Part, step: int) -> None:
        """Change weights and state.

        Parameters
        ----------
        part : Part
        step : int
            From 1.
        """
        if not part.weights.size:
            return
        starts = np.arange(0, part.weights.size, part.tensor.block)
        lengths = np.diff([*starts, part.weights.size])
        state = part.state
        first = state["first"] * np.repeat(state["first scale"], lengths)
        root = state["root"] * np.repeat(state["root scale"], lengths)
        first = self.beta1 * first + (1 - self.beta1) * part.gradient
        second = self.beta2 * root**2 + (1 - self.beta2) * part.gradient**2
        self.apply(part, step, first, second)
        root = np.sqrt(second)
        for name, values, levels in (("first", first, 127), ("root", root, 255)):
            scale = np.maximum.reduceat(np.abs(values), starts) / levels
            over = values / np.repeat(np.where(scale > 0, scale, 1.0), lengths)
            rounded = np.rint(over) if name == "first" else np.ceil(over)
            state[name][:] = np.clip(rounded, -levels, levels)
            state[f"{name} scale"][:] = scale


@dataclass(frozen=True, kw_only=True)
class Muon:
    """Momentum made orthogonal, for matrices, each on one rank; AdamW for everything else.

    References
    ----------
    K. Jordan and others, "Muon: An optimizer for hidden layers in neural networks", 2024.
    """

    lr: float = setting(0.02, says="Learning rate of matrices", low=0.0, high=10.0)
    momentum: float = setting(0.95, says="Momentum", low=0.0, high=1.0)
    iterations: int = setting(5, says="Newton-Schulz iterations", low=1, high=50)
    others: AdamW = AdamW()

    def whole(self, tensor: Tensor) -> bool:
        """Return whether a tensor is a matrix, which one rank must have whole.

        Parameters
        ----------
        tensor : Tensor
        """
        return len(tensor.shape) == 2

    def kinds(self, tensor: Tensor) -> dict[str, tuple[str, str]]:
        """Return type and grain of each state.

        Parameters
        ----------
        tensor : Tensor
        """
        return {"matrix momentum": ("<f8", "matrix")} if self.whole(tensor) else self.others.kinds(tensor)

    def update(self, part: Part, step: int) -> None:
        """Change weights and state of what is no matrix.

        Parameters
        ----------
        part : Part
        step : int
            From 1.
        """
        self.others.update(part, step)

    def direction(self, gradient: Floats, state: State, tensor: Tensor) -> Floats:
        """Return what is subtracted from a matrix, on its root.

        Parameters
        ----------
        gradient : float64 array (n,)
        state : dict of str to array
        tensor : Tensor
        """
        moving = state["matrix momentum"]
        moving *= self.momentum
        moving += gradient
        rows, columns = tensor.shape
        ahead = (gradient + self.momentum * moving).reshape(rows, columns)
        straight = orthogonal(ahead, self.iterations)
        return np.ascontiguousarray(self.lr * np.sqrt(max(1.0, rows / columns)) * straight).reshape(-1)


Optimizer = Sgd | AdamW | Adam8 | Muon


def orthogonal(matrix: Floats, iterations: int) -> Floats:
    """Return about the nearest matrix with equal singular values, by a polynomial of odd powers.

    Parameters
    ----------
    matrix : float64 array (rows, columns)
    iterations : int
    """
    tall = matrix.shape[0] > matrix.shape[1]
    at = matrix.T if tall else matrix
    at = at / (np.linalg.norm(at) + 1e-7)
    one, three, five = _NEWTON_SCHULZ
    for _ in range(iterations):
        square = at @ at.T
        at = one * at + (three * square + five * square @ square) @ at
    return at.T if tall else at


def roots(tensors: Sequence[Tensor], ranks: int) -> list[int]:
    """Return which rank has each matrix whole: the most expensive first, each to the rank with least to do.

    Parameters
    ----------
    tensors : sequence of Tensor
        Matrices.
    ranks : int
    """
    cost = [each.size * min(each.shape) for each in tensors]
    load, found = [0] * ranks, [0] * len(tensors)
    for i in sorted(range(len(tensors)), key=lambda i: (-cost[i], i)):
        found[i] = load.index(min(load))
        load[found[i]] += cost[i]
    return found
