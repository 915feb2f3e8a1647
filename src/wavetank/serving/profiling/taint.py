"""Sizes that remember what they come from: the model's configuration, or the request.

A size is a whole number that is a scale times a product of request quantities, plus an offset; what is in the product
is its history, so that the same size can be rebuilt for another batch.  :class:`TaintedInt` carries it through Python
arithmetic, :class:`Registry` finds it again by the number alone where a library has handed on a plain one.

The rules are those of the tracer of Dooly (arXiv 2605.07985); its history is a quantity per label, ours a power per
label with a scale and an offset, so that squares and sums can be rebuilt too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from wavetank.errors import BadValueError

MODEL_CONFIG, TP_CONFIG = "MODEL_CONFIG", "TP_CONFIG"
NUM_TOKS, NUM_REQS, MAX_NUM_REQS = "NUM_TOKS", "NUM_REQS", "MAX_NUM_REQS"
CONTEXT, MAX_CONTEXT = "CONTEXT", "MAX_CONTEXT"
MIX = "MIX"
NO_LABEL = ""
CONFIG_LABELS = (MODEL_CONFIG, TP_CONFIG)
REQUEST_LABELS = (NUM_TOKS, NUM_REQS, MAX_NUM_REQS, CONTEXT, MAX_CONTEXT)


def combined(left: str, right: str) -> str:
    """Return the label of what two labelled quantities give; empty where it is dropped.

    Examples
    --------
    >>> combined("NUM_TOKS", "MODEL_CONFIG"), combined("NUM_REQS", "NUM_TOKS"), combined("", "NUM_REQS")
    ('MIX', '', 'NUM_REQS')
    """
    if left == right or not right:
        return left
    if not left:
        return right
    if left in CONFIG_LABELS and right in CONFIG_LABELS:
        return MODEL_CONFIG
    if MIX in (left, right) or left in CONFIG_LABELS or right in CONFIG_LABELS:
        return MIX
    return NO_LABEL


@dataclass(frozen=True)
class Taint:
    """Where a size comes from: ``scale * product of quantity ** power + offset``.

    Attributes
    ----------
    powers : tuple of (str, int)
        Request labels with their powers, sorted.
    scale, offset : int
    configs : tuple of str
        Configuration labels among the factors, sorted.
    """

    powers: tuple[tuple[str, int], ...] = ()
    scale: int = 1
    offset: int = 0
    configs: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The label by the rules; empty for none, which two different request labels give."""
        if len(self.powers) > 1:
            return NO_LABEL
        label = NO_LABEL
        for each in self.configs:
            label = combined(label, each)
        return combined(self.powers[0][0], label) if self.powers else label

    def size(self, quantities: Mapping[str, int]) -> int:
        """Return the size for these request quantities."""
        found = self.scale
        for label, power in self.powers:
            found *= quantities[label] ** power
        return found + self.offset

    def history(self, quantities: Mapping[str, int]) -> dict[str, int]:
        """Return the quantity that each label brings into the product, as the paper's merge history has it."""
        found = {label: quantities[label] ** power for label, power in self.powers}
        return found | ({MODEL_CONFIG: self.scale} if self.configs else {})


def of_config(value: int, label: str = MODEL_CONFIG) -> Taint:
    """Return the taint of a number of the configuration."""
    return Taint(scale=value, configs=(label,))


def of_request(label: str) -> Taint:
    """Return the taint of a request quantity itself."""
    return Taint(powers=((label, 1),))


def _constant(value: int) -> Taint:
    return Taint(scale=value)


def _joined(left: Taint, right: Taint) -> tuple[str, ...]:
    return tuple(sorted({*left.configs, *right.configs}))


def add(left: Taint, right: Taint) -> Taint | None:
    """Return the taint of a sum; None where the label is dropped."""
    configs = _joined(left, right)
    if left.powers and right.powers:
        if left.powers != right.powers:
            return None
        scale, offset = left.scale + right.scale, left.offset + right.offset
        return Taint(left.powers, scale, offset, configs) if scale else None
    if right.powers:
        left, right = right, left
    value = right.scale + right.offset
    if left.powers:
        return Taint(left.powers, left.scale, left.offset + value, configs)
    return Taint((), left.scale + left.offset + value, 0, configs)


def multiply(left: Taint, right: Taint) -> Taint | None:
    """Return the taint of a product; None where it is no product of quantities any more."""
    configs = _joined(left, right)
    if left.powers and right.powers:
        if left.offset or right.offset:
            return None
        powers = dict(left.powers)
        for label, power in right.powers:
            powers[label] = powers.get(label, 0) + power
        return Taint(tuple(sorted(powers.items())), left.scale * right.scale, 0, configs)
    if right.powers:
        left, right = right, left
    value = right.scale + right.offset
    return Taint(left.powers, left.scale * value, left.offset * value, configs) if value else None


def divide(left: Taint, right: Taint) -> Taint | None:
    """Return the taint of an exact quotient; None where the quotient is rounded for other quantities."""
    configs = _joined(left, right)
    powers = dict(left.powers)
    if right.powers:
        if left.offset or right.offset:
            return None
        for label, power in right.powers:
            powers[label] = powers.get(label, 0) - power
            if powers[label] < 0:
                return None
    divisor = right.scale + (0 if right.powers else right.offset)
    if not left.powers and not right.powers:
        return Taint((), (left.scale + left.offset) // divisor, 0, configs) if divisor else None
    if not divisor or left.scale % divisor or left.offset % divisor:
        return None
    kept = tuple(sorted((label, power) for label, power in powers.items() if power))
    return Taint(kept, left.scale // divisor, left.offset // divisor, configs)


class Registry:
    """Which taint a plain number has, as far as it has one alone.

    Parameters
    ----------
    quantities : mapping of str to int
        The request quantities of this trace, by label.
    """

    def __init__(self, quantities: Mapping[str, int]) -> None:
        self.quantities = dict(quantities)
        self._known: dict[int, Taint] = {}
        for label, value in quantities.items():
            self.register(value, of_request(label))

    def register(self, value: int, taint: Taint) -> None:
        """Remember a size.

        Raises
        ------
        BadValueError
            If the number has another taint already and one of the two is a request's: the sizes of the trace collide.
        """
        if value < 2:
            # Dimensions of one element say nothing: they are broadcast.
            return
        known = self._known.setdefault(value, taint)
        one, other = ((each.powers, each.scale, each.offset) for each in (known, taint))
        if (known.powers or taint.powers) and one != other:
            raise BadValueError(
                "Two sizes of the trace are the same number, so that their origins cannot be distinguished.",
                given=f"{value}: {in_words(known)}, and {in_words(taint)}",
                hint="trace with other request sizes, such as primes that the model does not have",
            )

    def find(self, value: int) -> Taint | None:
        """Return the taint of a number; None where it has none."""
        return self._known.get(value)

    def tainted(self, value: int) -> int:
        """Return a number with its taint, if it has one."""
        taint = self._known.get(value)
        return value if taint is None else TaintedInt(value, taint, self)


def in_words(taint: Taint) -> str:
    """Return a taint as a reader writes it.

    Examples
    --------
    >>> in_words(Taint((("NUM_TOKS", 1),), 64, 1, ("MODEL_CONFIG",)))
    '64*NUM_TOKS+1'
    """
    if not taint.powers:
        return f"{taint.label or 'number'} {taint.scale + taint.offset}"
    product = "*".join(label if power == 1 else f"{label}**{power}" for label, power in taint.powers)
    scale = "" if taint.scale == 1 else f"{taint.scale}*"
    return f"{scale}{product}" + (f"{taint.offset:+d}" if taint.offset else "")


def _operator(
    plain: Callable[[int, int], Any], rule: Callable[[Taint, Taint], Taint | None], swapped: bool = False
) -> Callable[[TaintedInt, Any], Any]:
    def apply(self: TaintedInt, other: Any) -> Any:
        if not isinstance(other, int) or isinstance(other, bool):
            return NotImplemented
        taints = (self.taint, other.taint if isinstance(other, TaintedInt) else _constant(other))
        values = (int(self), int(other))
        if swapped:
            taints, values = taints[::-1], values[::-1]
        value, taint = plain(*values), rule(*taints)
        if taint is None:
            return value
        if taint.powers:
            self.registry.register(value, taint)
        return TaintedInt(value, taint, self.registry)

    return apply


class TaintedInt(int):
    """A whole number that carries its taint through arithmetic, and enters every size it gives into the registry.

    Where a label is dropped the result is a plain number.
    """

    taint: Taint
    registry: Registry

    def __new__(cls, value: int, taint: Taint, registry: Registry) -> TaintedInt:
        """Return the number with its taint."""
        made = super().__new__(cls, value)
        made.taint, made.registry = taint, registry
        return made

    __add__ = _operator(lambda a, b: a + b, add)
    __radd__ = _operator(lambda a, b: a + b, add, swapped=True)
    __sub__ = _operator(lambda a, b: a - b, lambda a, b: add(a, multiply(b, _constant(-1)) or _constant(0)))
    __rsub__ = _operator(
        lambda a, b: a - b, lambda a, b: add(a, multiply(b, _constant(-1)) or _constant(0)), swapped=True
    )
    __mul__ = _operator(lambda a, b: a * b, multiply)
    __rmul__ = _operator(lambda a, b: a * b, multiply, swapped=True)
    __floordiv__ = _operator(lambda a, b: a // b, divide)
    __rfloordiv__ = _operator(lambda a, b: a // b, divide, swapped=True)
