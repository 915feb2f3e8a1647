"""Operations of a forward pass: what they are called with, in terms of the request, and their signatures.

A signature is the hash of an operation's name and arguments, request quantities as symbols and everything else as
numbers.  Two operations with the same signature take the same time for the same batch, whatever model they are of.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from wavetank.errors import BadFileError
from wavetank.serving.profiling.taint import CONTEXT, NUM_REQS, NUM_TOKS, REQUEST_LABELS, Taint

ATTENTION = ("wavetank.cached_attention.default", "vllm.attention.layer")
"""Operations over a KV cache: their work depends on what each sequence of a batch has, not on shapes alone."""

SWEPT = (NUM_TOKS, NUM_REQS, CONTEXT)
"""Request quantities that a sweep varies; the others are limits of an engine."""


def dimension(taint: Taint | None, value: int) -> Any:
    """Return a size as it stands in a structure: a number, or a mapping of powers, scale ``x`` and offset ``+``.

    Parameters
    ----------
    taint : Taint or None
    value : int
        Of the trace; it stands for itself where no request quantity is in it.
    """
    if taint is None or not taint.powers:
        return int(value)
    found: dict[str, int] = dict(taint.powers)
    if taint.scale != 1:
        found["x"] = taint.scale
    if taint.offset:
        found["+"] = taint.offset
    return found


def is_symbol(part: Any) -> bool:
    """Return whether a part of a structure is a size that depends on the request."""
    return isinstance(part, dict) and any(key in REQUEST_LABELS for key in part)


def evaluated(part: Any, quantities: Mapping[str, int]) -> Any:
    """Return a part of a structure with its symbols as numbers for these quantities.

    Parameters
    ----------
    part : object
    quantities : mapping of str to int
        By label.
    """
    if is_symbol(part):
        value = int(part.get("x", 1))
        for label, power in part.items():
            if label in REQUEST_LABELS:
                value *= quantities[label] ** power
        return value + int(part.get("+", 0))
    if isinstance(part, dict):
        return {key: evaluated(each, quantities) for key, each in part.items()}
    if isinstance(part, list):
        return [evaluated(each, quantities) for each in part]
    return part


def symbols(part: Any) -> Iterator[str]:
    """Yield the request labels in a part of a structure."""
    if is_symbol(part):
        yield from (label for label in part if label in REQUEST_LABELS)
    elif isinstance(part, dict):
        for each in part.values():
            yield from symbols(each)
    elif isinstance(part, list):
        for each in part:
            yield from symbols(each)


@dataclass(frozen=True)
class Operation:
    """One distinct operation.

    Attributes
    ----------
    name : str
        As torch's dispatcher names it, such as ``"aten.linear.default"``.
    structure : str
        Its arguments in canonical JSON: ``{"a": [...], "k": {...}}``.
    """

    name: str
    structure: str

    @cached_property
    def signature(self) -> str:
        """The hash that identifies it, 64 hexadecimal digits."""
        return hashlib.sha256(f"{self.name}\n{self.structure}".encode()).hexdigest()

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """The structure, read."""
        found: dict[str, Any] = json.loads(self.structure)
        return found

    @cached_property
    def varies_with(self) -> frozenset[str]:
        """The request labels in it, limits of an engine included."""
        return frozenset(symbols(self.arguments))

    @property
    def swept(self) -> frozenset[str]:
        """The request quantities that its time depends on, as far as its arguments say."""
        return self.varies_with & set(SWEPT)

    @property
    def kind(self) -> str:
        """Which grid it is swept over: ``attention``, ``tokens``, ``requests``, ``once``, or ``product`` of several."""
        if self.name in ATTENTION:
            return "attention"
        if is_view(self.name) or not self.swept:
            return "once"
        return {frozenset({NUM_TOKS}): "tokens", frozenset({NUM_REQS}): "requests"}.get(self.swept, "product")

    def words(self) -> str:
        """Return the operation in a line, for people."""
        parts = [_shape(each) for each in tensors(self.arguments)]
        return f"{self.name.removesuffix('.default').removeprefix('aten.')}({', '.join(parts)})"


def _shape(tensor: Mapping[str, Any]) -> str:
    sizes = [
        "*".join([*([str(each["x"])] if "x" in each else []), *(k for k in each if k not in "x+")])
        if isinstance(each, dict) else str(each)
        for each in tensor["d"]
    ]  # fmt: skip
    return f"{tensor['t'].removeprefix('torch.')}[{', '.join(sizes)}]"


# What only reinterprets memory: its time does not depend on the sizes.
_VIEWS = frozenset({
    "view", "reshape", "_unsafe_view", "expand", "permute", "transpose", "t", "unsqueeze", "squeeze", "select", "slice",
    "split", "split_with_sizes", "chunk", "narrow", "unbind", "detach", "alias", "as_strided", "flatten", "unflatten",
    "movedim", "swapaxes", "diagonal", "view_as", "expand_as",
})  # fmt: skip


def is_view(name: str) -> bool:
    """Return whether an operation, named as the dispatcher does, only reinterprets memory."""
    return name.startswith("aten.") and name.split(".")[1] in _VIEWS


def tensors(part: Any) -> Iterator[dict[str, Any]]:
    """Yield the tensors in a structure: ``t`` its type, ``d`` its sizes, ``o`` its order in memory, ``w`` a weight."""
    if isinstance(part, dict):
        if "t" in part and "d" in part:
            yield part
        else:
            for each in part.values():
                yield from tensors(each)
    elif isinstance(part, list):
        for each in part:
            yield from tensors(each)


def canonical(structure: Any) -> str:
    """Return JSON in which equal structures are equal texts."""
    return json.dumps(structure, sort_keys=True, separators=(",", ":"), allow_nan=True)


def checked(name: str, structure: str, signature: str, where: str) -> Operation:
    """Return an operation that was kept, or refuse it where its hash is not the one it was kept under.

    Parameters
    ----------
    name, structure, signature : str
    where : str
        For the message.

    Raises
    ------
    BadFileError
    """
    operation = Operation(name, structure)
    if operation.signature != signature:
        raise BadFileError("An operation is not the one that its signature names: the file is damaged.",
                           given=signature, where=where)  # fmt: skip
    return operation
