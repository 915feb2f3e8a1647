"""Traces one forward pass, without computing it, and finds for every size whether the model or the request set it.

Two modes of torch see every call: one hands out sizes that carry their taint through Python arithmetic, the other
sees each operation with plain numbers and labels them again.  The pass is traced twice, with different request sizes:
a label is right only if it gives the sizes of the second pass too, and a number that changed without a label, or
another list of operations, is an error instead of a wrong profile.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from wavetank.errors import BadValueError
from wavetank.machine.cuda import require_torch
from wavetank.serving.profiling.operations import Operation, canonical, dimension, evaluated, is_symbol
from wavetank.serving.profiling.taint import (
    CONTEXT,
    MAX_CONTEXT,
    MAX_NUM_REQS,
    NUM_REQS,
    NUM_TOKS,
    Registry,
    Taint,
    TaintedInt,
    add,
    divide,
    multiply,
    of_config,
)

_TRIES = 8
_GUARD = 1e-3
_FIRST = {NUM_TOKS: 10_007, NUM_REQS: 1_009, MAX_NUM_REQS: 2_633, CONTEXT: 30_011, MAX_CONTEXT: 50_021}
# What a float that differs between two traces is replaced by: its value follows from sizes, and times do not from it.
ANY = {"any": "float"}


@dataclass(frozen=True)
class RequestSizes:
    """The sizes of a traced batch; odd ones, so that no size of the model equals one of them.

    Attributes
    ----------
    tokens, requests, max_requests, context, max_context : int
        Tokens computed, requests in the batch, requests that an engine has room for, tokens of context read, and the
        longest context of a request.
    """

    tokens: int
    requests: int
    max_requests: int
    context: int
    max_context: int

    @property
    def quantities(self) -> dict[str, int]:
        """The sizes by label."""
        return {
            NUM_TOKS: self.tokens, NUM_REQS: self.requests, MAX_NUM_REQS: self.max_requests, CONTEXT: self.context,
            MAX_CONTEXT: self.max_context,
        }  # fmt: skip


@dataclass(frozen=True)
class Collective:
    """A call that devices make together.

    Attributes
    ----------
    name : str
        Such as ``"all_reduce"``.
    elements : str
        Canonical JSON of the sizes of what each device sends.
    dtype : str
    devices : int
    """

    name: str
    elements: str
    dtype: str
    devices: int


@dataclass(frozen=True)
class Trace:
    """The operations of one forward pass.

    Attributes
    ----------
    counts : mapping of Operation to int
        How often each distinct operation is called, in order of its first call.
    collectives : mapping of Collective to int
        Likewise; they are kept apart from what one device does.
    sequence : tuple of Operation
        Every call, in order.
    """

    counts: Mapping[Operation, int]
    collectives: Mapping[Collective, int]
    sequence: tuple[Operation, ...]


def trace(
    model: Callable[..., Any],
    inputs: Callable[[RequestSizes], Sequence[Any]],
    *,
    weights: Iterable[Any] | None = None,
    numbers: Iterable[int] = (),
    sizes: RequestSizes | None = None,
    tensor_parallel: int = 1,
) -> Trace:
    """Trace one forward pass.

    Parameters
    ----------
    model : callable
        Its weights are on torch's device ``meta``, so that nothing is computed or allocated.
    inputs : callable
        Returns the arguments of a call for given sizes, tensors on ``meta``.
    weights : iterable of torch.Tensor, optional
        By default what ``model.parameters()`` and ``model.buffers()`` give.
    numbers : iterable of int
        Further numbers of the model's configuration.
    sizes : RequestSizes, optional
        Primes that the model does not have by default.
    tensor_parallel : int, default 1
        How many devices ``torch.distributed`` pretends to join: collectives do nothing and are noted.

    Raises
    ------
    BadValueError
        If sizes collide, the operations depend on the sizes, a size cannot be attributed, or the pass needs values.
    """
    torch = require_torch("Tracing a model")
    held = list(weights) if weights is not None else _weights(model)
    known = sorted({int(size) for tensor in held for size in tensor.shape} | {int(number) for number in numbers})
    given = sizes is not None
    for attempt in range(_TRIES):
        first = sizes if sizes is not None else _odd(known, attempt)
        second = _odd([*known, *first.quantities.values()], attempt + 1)
        try:
            passes = [_Pass(torch, held, known, each, tensor_parallel) for each in (first, second)]
            for each in passes:
                each.follow(model, inputs)
            break
        except _CollisionError as error:
            if given or attempt == _TRIES - 1:
                raise BadValueError(error.problem, given=error.given, hint=error.hint) from error
    calls = _agreed(*passes)
    operations = tuple(Operation(name, canonical(structure)) for name, structure in calls)
    counts = Counter(operations)
    if [name for name, *_ in passes[0].collectives] != [name for name, *_ in passes[1].collectives]:
        raise BadValueError("The collectives of the model depend on the request's sizes.")
    together = Counter(Collective(name, canonical(dims), dtype, tensor_parallel)
                       for name, dims, dtype in passes[0].collectives)  # fmt: skip
    return Trace({each: counts[each] for each in dict.fromkeys(operations)}, dict(together), operations)


class _CollisionError(BadValueError):
    """Two sizes of the trace are one number: other sizes may do."""


def _weights(model: Any) -> list[Any]:
    found: list[Any] = []
    for part in ("parameters", "buffers"):
        if callable(getattr(model, part, None)):
            found += list(getattr(model, part)())
    return found


def _odd(known: Sequence[int], attempt: int) -> RequestSizes:
    """Return primes of which none is, or divides, a number of the model."""
    taken = {number for number in known if number > 1}
    found: dict[str, int] = {}
    for label, start in _FIRST.items():
        value = start + 1000 * attempt
        while not _is_prime(value) or any(number % value == 0 for number in taken):
            value += 1
        found[label] = value
        taken.add(value)
    return RequestSizes(found[NUM_TOKS], found[NUM_REQS], found[MAX_NUM_REQS], found[CONTEXT], found[MAX_CONTEXT])


def _is_prime(value: int) -> bool:
    return value > 1 and all(value % divisor for divisor in range(2, math.isqrt(value) + 1))


class _Pass:
    """One traced forward pass: its calls, as (name, structure)."""

    def __init__(
        self, torch: Any, weights: Sequence[Any], known: Sequence[int], sizes: RequestSizes, devices: int
    ) -> None:
        self.torch, self.sizes, self.devices = torch, sizes, devices
        self.calls: list[tuple[str, Any]] = []
        self.collectives: list[tuple[str, Any, str]] = []
        self.registry = Registry(sizes.quantities)
        self.weights = {id(tensor) for tensor in weights}
        # Of tensors seen: their sizes at that time, and the taint of each.
        self.labels: Any = torch.utils.weak.WeakTensorKeyDictionary()
        self._known = known

    def follow(self, model: Callable[..., Any], inputs: Callable[[RequestSizes], Sequence[Any]]) -> None:
        torch = self.torch
        try:
            for number in self._known:
                self.registry.register(number, of_config(number))
            with torch.inference_mode():
                given = inputs(self.sizes)
                with _pretended(torch, self), _sizes_mode(torch, self), _operations_mode(torch, self):
                    model(*given)
        except BadValueError as error:
            if error.problem.startswith("Two sizes"):
                raise _CollisionError(error.problem, given=error.given, hint=error.hint) from error
            raise
        except (RuntimeError, NotImplementedError) as error:
            last = self.calls[-1][0] if self.calls else "the first operation"
            raise BadValueError(
                "The model cannot be traced without its values.", given=f"{type(error).__name__}: {error}",
                where=f"after {last}", hint="shapes must not depend on what tensors hold",
            ) from error  # fmt: skip

    def taints(self, tensor: Any) -> tuple[Taint | None, ...]:
        """Return the taint of each dimension; a tensor that was resized in place is looked up anew."""
        found = self.labels.get(tensor)
        shape = tuple(map(int, tensor.shape))
        if found is None or found[0] != shape:
            found = (shape, tuple(self.registry.find(size) if size > 1 else None for size in shape))
            self.labels[tensor] = found
        labels: tuple[Taint | None, ...] = found[1]
        return labels

    def called(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Note a call, and label what came out of it."""
        inputs = [each for each in _leaves((list(args), dict(kwargs))) if isinstance(each, self.torch.Tensor)]
        structure = {"a": [self.described(each) for each in args]}
        if "norm" in str(function):
            # What guards a division against zero differs between models, and no time depends on it.
            structure = {"a": [dict(ANY) if _is_guard(each) else each for each in structure["a"]]}
        named = {name: self.described(each) for name, each in kwargs.items() if name not in ("device", "pin_memory")}
        self.calls.append((str(function), structure | ({"k": named} if named else {})))
        for output in _leaves(result):
            if isinstance(output, self.torch.Tensor) and not any(output is each for each in inputs):
                self._label(str(function), output, inputs)

    def _label(self, name: str, output: Any, inputs: Sequence[Any]) -> None:
        known: dict[int, Taint] = {}
        for tensor in inputs:
            for size, taint in zip(tensor.shape, self.taints(tensor), strict=True):
                if taint is not None and taint.powers:
                    # The registry holds each of these, so that two taints of one size have been refused.
                    known[int(size)] = taint
        shape = tuple(map(int, output.shape))
        found: list[Taint | None] = []
        for place, size in enumerate(shape):
            taint = known.get(size) or (self.registry.find(size) if size > 1 else None)
            if taint is None and size > 1:
                taint = self._derived(name, place, size, output, inputs)
                if taint is not None and taint.powers:
                    self.registry.register(size, taint)
            found.append(taint)
        self.labels[output] = (shape, tuple(found))

    def _derived(self, name: str, place: int, size: int, output: Any, inputs: Sequence[Any]) -> Taint | None:
        """Return the taint of a size that no input has: of dimensions joined or parted, or tensors put side by side."""
        if re.match(r"aten\.(cat|concat)", name) and all(tensor.dim() == output.dim() for tensor in inputs):
            total: Taint | None = None
            for tensor in inputs:
                part = self.taints(tensor)[place] or Taint(scale=int(tensor.shape[place]))
                total = part if total is None else add(total, part)
                if total is None:
                    return None
            return total if total is not None and total.size(self.sizes.quantities) == size else None
        for tensor in inputs:
            dims, labels = tuple(map(int, tensor.shape)), self.taints(tensor)
            for start in range(len(dims)):
                product = 1
                joined: Taint | None = Taint()
                for each, taint in zip(dims[start:], labels[start:], strict=True):
                    product *= each
                    joined = multiply(joined, taint or Taint(scale=each)) if joined is not None and each else None
                    if joined is None or product > size:
                        break
                    if product == size and joined.powers:
                        return joined
            if tensor.numel() == output.numel():
                # The same elements in other dimensions: what the others leave.
                whole = self._product(dims, labels)
                rest = [int(each) for other, each in enumerate(output.shape) if other != place]
                others = self._product(rest, [self.registry.find(each) if each > 1 else None for each in rest])
                left = divide(whole, others) if whole is not None and others is not None else None
                if left is not None and left.powers:
                    return left
        return None

    @staticmethod
    def _product(sizes: Sequence[int], taints: Sequence[Taint | None]) -> Taint | None:
        found: Taint | None = Taint()
        for size, taint in zip(sizes, taints, strict=True):
            found = multiply(found, taint or Taint(scale=size)) if found is not None and size else None
        return found

    def described(self, value: Any) -> Any:
        """Return an argument as it stands in a structure."""
        torch = self.torch
        if isinstance(value, torch.Tensor):
            dims = [dimension(taint, size) for taint, size in zip(self.taints(value), value.shape, strict=True)]
            found: dict[str, Any] = {"t": str(value.dtype).removeprefix("torch."), "d": dims}
            strides = value.stride()
            order = sorted(range(value.dim()), key=lambda d: (-strides[d], d))
            # A broadcast dimension has stride 0 wherever it stands, and dimensions of one element any stride.
            order = [d for d in order if value.shape[d] != 1]
            if order != sorted(order):
                found["o"] = order
            if any(stride == 0 and size > 1 for stride, size in zip(strides, value.shape, strict=True)):
                found["e"] = [d for d in range(value.dim()) if strides[d] == 0 and value.shape[d] > 1]
            if id(value) in self.weights:
                found["w"] = 1
            return found
        if isinstance(value, list | tuple):
            return [self.described(each) for each in value]
        if isinstance(value, bool) or value is None or isinstance(value, str):
            return value
        if isinstance(value, int):
            return dimension(self.registry.find(int(value)), value)
        if isinstance(value, float):
            return {"f": float(value).hex()}
        return {"v": str(value)}


def _is_guard(part: Any) -> bool:
    return isinstance(part, dict) and set(part) == {"f"} and abs(float.fromhex(part["f"])) < _GUARD


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            yield from _leaves(each)
    else:
        yield value


def _sizes_mode(torch: Any, noted: _Pass) -> Any:
    """Return the mode in which ``shape`` and ``size`` give sizes that carry their taint."""
    shape_of = torch.Tensor.shape

    class Sizes(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found = function(*args, **(kwargs or {}))
            if getattr(function, "__self__", None) is shape_of or function is torch.Tensor.size:
                taints = noted.taints(args[0])
                if isinstance(found, int):
                    taint = taints[args[1] if len(args) > 1 else (kwargs or {})["dim"]]
                    return found if taint is None else TaintedInt(found, taint, noted.registry)
                return torch.Size(
                    size if taint is None else TaintedInt(size, taint, noted.registry)
                    for size, taint in zip(found, taints, strict=True)
                )
            return found

    return Sizes()


def _operations_mode(torch: Any, noted: _Pass) -> Any:
    """Return the mode that sees every operation."""

    class Operations(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            noted.called(function, args, kwargs or {}, result)
            return result

    return Operations()


@contextlib.contextmanager
def _pretended(torch: Any, noted: _Pass) -> Iterator[None]:
    """Let ``torch.distributed`` join as many devices as the pass pretends to have: calls are noted and do nothing."""
    if noted.devices == 1:
        yield
        return
    together = torch.distributed

    def note(name: str, which: int) -> Callable[..., None]:
        def collective(*args: Any, **kwargs: Any) -> None:
            sent = args[which] if len(args) > which else next(iter(kwargs.values()))
            dims = noted.described(sent)["d"]
            noted.collectives.append((name, dims, str(sent.dtype).removeprefix("torch.")))

        return collective

    calls = {
        "all_reduce": note("all_reduce", 0), "broadcast": note("broadcast", 0),
        "all_gather_into_tensor": note("all_gather", 1), "all_gather": note("all_gather", 1),
        "reduce_scatter_tensor": note("reduce_scatter", 1), "all_to_all_single": note("all_to_all", 1),
        "barrier": lambda *_, **__: None, "get_rank": lambda *_: 0, "is_initialized": lambda: True,
        "get_world_size": lambda *_: noted.devices,
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        for name, call in calls.items():
            stack.enter_context(mock.patch.object(together, name, call, create=True))
        yield


def _agreed(first: _Pass, second: _Pass) -> list[tuple[str, Any]]:
    """Return the calls of the first pass, once the second has shown that their labels are right."""
    names = [[name for name, _ in each.calls] for each in (first, second)]
    if names[0] != names[1]:
        differ = (i for i, pair in enumerate(zip(*names, strict=False)) if pair[0] != pair[1])
        place = next(differ, min(map(len, names)))
        there = [each[place] if place < len(each) else "the end" for each in names]
        raise BadValueError(
            "The operations of the model depend on the request's sizes: it branches on them.",
            given=f"operation {place + 1} is {there[0]} for {first.sizes.tokens} tokens and {there[1]} for "
            f"{second.sizes.tokens}",
            hint="profile the branches as models of their own",
        )  # fmt: skip
    found = []
    for place, ((name, one), (_, other)) in enumerate(zip(first.calls, second.calls, strict=True), 1):
        found.append((name, _same(one, other, second.sizes.quantities, f"operation {place}, {name}")))
    return found


def _same(one: Any, other: Any, quantities: Mapping[str, int], where: str) -> Any:
    """Return a structure that holds for both passes."""
    if isinstance(one, dict) and isinstance(other, dict) and set(one) == {"f"} == set(other):
        return one if one == other else dict(ANY)
    if is_symbol(one):
        if one != other:
            # Their numbers may still agree: a label that one pass dropped is no matter if the other's gives its size.
            value = other if isinstance(other, int) else evaluated(other, quantities)
            if evaluated(one, quantities) != value:
                raise _unattributed(one, other, where)
        return one
    if isinstance(one, dict) and isinstance(other, dict) and set(one) == set(other):
        return {key: _same(one[key], other[key], quantities, where) for key in one}
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [_same(a, b, quantities, where) for a, b in zip(one, other, strict=True)]
    if one != other or type(one) is not type(other):
        raise _unattributed(one, other, where)
    return one


def _unattributed(one: Any, other: Any, where: str) -> BadValueError:
    return BadValueError(
        "A size depends on the request in a way that cannot be followed.",
        given=f"{one} in one pass, {other} in another", where=where,
        hint="sizes may be sums and products of the request's; rounding, or a sum of two of them, cannot be rebuilt",
    )  # fmt: skip


def scaled(traced: Trace, smaller: Trace, layers: int) -> Trace:
    """Return the trace of a model of more layers from those of two layers and of one, which have the same signatures.

    Parameters
    ----------
    traced : Trace
        Of two layers.
    smaller : Trace
        Of one layer.
    layers : int
        Of the model; its ``sequence`` is that of two layers.
    """

    def more(two: int, one: int) -> int:
        return one + (layers - 1) * (two - one)

    counts = {each: more(two, smaller.counts.get(each, 0)) for each, two in traced.counts.items()}
    together = {each: more(two, smaller.collectives.get(each, 0)) for each, two in traced.collectives.items()}
    return replace(traced, counts=counts, collectives=together)
