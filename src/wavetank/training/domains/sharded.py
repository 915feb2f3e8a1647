"""A tensor of which each process holds a part, and the table of operations that know what to do with it.

``ShardTensor`` takes part in torch's function protocol: modules and functions of torch that meet one look up a handler
by the function's name.  Handlers for your own operations are registered with :func:`handles`.  An operation without one
is gathered, computed whole in every process and cut again; ``domain.fallbacks`` counts them.

Parts may be uneven, and some empty: sizes of all parts are part of the tensor, so that nobody has to ask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist

from wavetank.errors import BadValueError
from wavetank.training.domains.exchange import Domain, copied, copied_together, cut, gather, turn
from wavetank.training.domains.interface import Layout, check_sizes, even_sizes

Handler = Callable[..., Any]
"""``handler(function, *arguments, **keywords)``, with the arguments of the function; one of them is a ShardTensor."""

_HANDLERS: dict[str, Handler] = {}
_ALIASES = {
    "_max_pool1d": "max_pool1d", "_max_pool2d": "max_pool2d", "_max_pool3d": "max_pool3d", "true_divide": "div",
    "divide": "div", "multiply": "mul", "subtract": "sub", "negative": "neg", "truediv": "div",
}  # fmt: skip


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Register a handler for functions of these names, in place of the one that there was.

    Parameters
    ----------
    *names : str
        As ``function.__name__`` says, without underscores around it.

    Examples
    --------
    >>> from wavetank.training.domains.sharded import handles
    >>> @handles("softsign")
    ... def softsign(function, x):
    ...     return x.like(function(x.part))
    """

    def register(handler: Handler) -> Handler:
        _HANDLERS.update(dict.fromkeys(names, handler))
        return handler

    return register


def handler_of(name: str) -> Handler | None:
    """Return the handler for functions of a name; None where there is none.

    Parameters
    ----------
    name : str
    """
    plain = name.strip("_")
    return _HANDLERS.get(_ALIASES.get(name, _ALIASES.get(plain, plain)))


class ShardTensor:
    """A tensor that is cut along one dimension.

    Parameters
    ----------
    part : torch.Tensor
        What this process holds.
    domain : Domain
    axis : int
        The dimension that is cut.
    sizes : sequence of int
        Of all parts.

    Raises
    ------
    BadValueError
        If this process's part has another size, or there is no such dimension.
    """

    def __init__(self, part: torch.Tensor, domain: Domain, axis: int, sizes: Sequence[int]) -> None:
        if not -part.dim() <= axis < part.dim():
            raise BadValueError("A tensor is cut along a dimension that it has.", given=axis,
                                allowed=f"0 to {part.dim() - 1}", where="axis")  # fmt: skip
        self.part, self.domain = part, domain
        self.layout = Layout(axis % part.dim(), check_sizes(sizes, domain.size))
        if part.shape[self.layout.axis] != self.layout.sizes[domain.place]:
            raise BadValueError(
                "A part has another size than the tensor says.", given=tuple(part.shape),
                allowed=f"{self.layout.sizes[domain.place]} along dimension {self.layout.axis}",
            )  # fmt: skip

    # -- making and undoing --------------------------------------------------------------------------------------------

    @classmethod
    def from_part(
        cls, part: torch.Tensor, domain: Domain, axis: int, sizes: Sequence[int] | str = "asked"
    ) -> ShardTensor:
        """Return the tensor whose parts the processes hold.

        Parameters
        ----------
        part : torch.Tensor
        domain : Domain
        axis : int
        sizes : sequence of int, or ``"asked"``
            Sizes of all parts; ``"asked"``: the processes ask each other.
        """
        if isinstance(sizes, str):
            if sizes != "asked":
                raise BadValueError("Sizes are given or asked for.", given=sizes, allowed='numbers, or "asked"')
            mine = torch.tensor([part.shape[axis]], dtype=torch.int64)
            found = [torch.zeros_like(mine) for _ in range(domain.size)]
            dist.all_gather(found, mine, group=domain.group)
            sizes = [int(each) for each in found]
        return cls(part, domain, axis, sizes)

    @classmethod
    def from_whole(
        cls, whole: torch.Tensor, domain: Domain, axis: int, sizes: Sequence[int] | None = None
    ) -> ShardTensor:
        """Return a tensor cut out of one that every process has alike.

        Parameters
        ----------
        whole : torch.Tensor
        domain : Domain
        axis : int
        sizes : sequence of int, optional
            Of all parts; even ones when they are left out.
        """
        length = whole.shape[axis]
        parts = even_sizes(length, domain.size) if sizes is None else check_sizes(sizes, domain.size, length)
        axis %= whole.dim()
        return cls(cut(whole, domain, Layout(axis, parts)), domain, axis, parts)

    def full(self) -> torch.Tensor:
        """Return the whole tensor, in every process."""
        return gather(self.part, self.domain, self.layout)

    def moved(self, axis: int, sizes: Sequence[int] | None = None) -> ShardTensor:
        """Return the same tensor, cut elsewhere.

        Parameters
        ----------
        axis : int
        sizes : sequence of int, optional
            Of all parts; even ones when they are left out.
        """
        axis %= self.dim()
        length = self.shape[axis]
        parts = even_sizes(length, self.domain.size) if sizes is None else check_sizes(sizes, self.domain.size, length)
        new = Layout(axis, parts)
        part = self.part if new == self.layout else turn(self.part, self.domain, self.layout, new)
        return ShardTensor(part, self.domain, axis, parts)

    def like(self, part: torch.Tensor) -> ShardTensor:
        """Return a tensor that is cut like this one and has other parts.

        Parameters
        ----------
        part : torch.Tensor
        """
        return ShardTensor(part, self.domain, self.layout.axis, self.layout.sizes)

    # -- as tensors are asked ------------------------------------------------------------------------------------------

    @property
    def axis(self) -> int:
        """Return the dimension that is cut."""
        return self.layout.axis

    @property
    def shape(self) -> torch.Size:
        """Return the shape of the whole."""
        return torch.Size((*self.part.shape[: self.axis], self.layout.length, *self.part.shape[self.axis + 1 :]))

    def size(self, dim: int | None = None) -> Any:
        """Return the shape of the whole, or one of its numbers."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """Return the number of dimensions."""
        return self.part.dim()

    @property
    def ndim(self) -> int:
        """Return the number of dimensions."""
        return self.part.dim()

    @property
    def T(self) -> ShardTensor:  # noqa: N802 - the name of torch
        """Return the tensor with its dimensions in reverse order."""
        return permute(torch.permute, self, *reversed(range(self.dim())))

    @property
    def dtype(self) -> torch.dtype:
        """Return the type of its numbers."""
        return self.part.dtype

    @property
    def device(self) -> torch.device:
        """Return where the part lies."""
        return self.part.device

    @property
    def requires_grad(self) -> bool:
        """Return whether its part takes part in gradients."""
        return self.part.requires_grad

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = None if name.startswith("_") else getattr(torch.Tensor, name, None)
        if not callable(function):  # What is no method of a tensor, such as its grad, belongs to the part.
            raise AttributeError(f"a ShardTensor has no {name}")
        return lambda *arguments, **keywords: dispatched(function, (self, *arguments), keywords)

    def __add__(self, other: Any) -> Any:
        return dispatched(torch.add, (self, other), {})

    def __sub__(self, other: Any) -> Any:
        return dispatched(torch.sub, (self, other), {})

    def __mul__(self, other: Any) -> Any:
        return dispatched(torch.mul, (self, other), {})

    def __truediv__(self, other: Any) -> Any:
        return dispatched(torch.div, (self, other), {})

    def __rsub__(self, other: Any) -> Any:
        return dispatched(torch.rsub, (self, other), {})

    def __rtruediv__(self, other: Any) -> Any:
        return dispatched(torch.mul, (dispatched(torch.reciprocal, (self,), {}), other), {})

    def __pow__(self, other: Any) -> Any:
        return dispatched(torch.pow, (self, other), {})

    def __neg__(self) -> Any:
        return dispatched(torch.neg, (self,), {})

    __radd__, __rmul__ = __add__, __mul__

    def __matmul__(self, other: Any) -> Any:
        return dispatched(torch.matmul, (self, other), {})

    def __eq__(self, other: object) -> Any:
        return dispatched(torch.eq, (self, other), {})

    def __ne__(self, other: object) -> Any:
        return dispatched(torch.ne, (self, other), {})

    def __lt__(self, other: Any) -> Any:
        return dispatched(torch.lt, (self, other), {})

    def __le__(self, other: Any) -> Any:
        return dispatched(torch.le, (self, other), {})

    def __gt__(self, other: Any) -> Any:
        return dispatched(torch.gt, (self, other), {})

    def __ge__(self, other: Any) -> Any:
        return dispatched(torch.ge, (self, other), {})

    __hash__ = object.__hash__

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        """Return what an index picks: slices and whole numbers where the parts lie, all else from the whole."""
        found, axis = self, 0
        for each in index if isinstance(index, tuple) else (index,):
            whole_number = isinstance(each, int) and not isinstance(each, bool)
            if axis == found.dim() or not (whole_number or (isinstance(each, slice) and each.step in (None, 1))):
                return fallback(torch.Tensor.__getitem__, self, index)
            if whole_number:
                if axis == found.axis or not -found.shape[axis] <= each < found.shape[axis]:
                    return fallback(torch.Tensor.__getitem__, self, index)
                at = found.axis - (axis < found.axis)
                found = ShardTensor(found.part.select(axis, each), self.domain, at, found.layout.sizes)
            else:
                start, stop, _ = each.indices(found.shape[axis])
                found = narrow(torch.narrow, found, axis, start, max(stop - start, 0))
                axis += 1
        return found

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        return dispatched(function, arguments, keywords or {})


def dispatched(function: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
    """Return what a function gives, by its handler or, where there is none, from whole tensors.

    Parameters
    ----------
    function : callable
    arguments : sequence
    keywords : dict

    Raises
    ------
    BadValueError
        For an operation in place that would change a copy.
    """
    name = getattr(function, "__name__", "")
    handler = handler_of(name)
    if "input" in keywords:
        keywords = dict(keywords)
        arguments = (keywords.pop("input"), *arguments)
    if handler is not None:  # Names that torch takes from NumPy.
        keywords = {{"axis": "dim", "keepdims": "keepdim"}.get(key, key): each for key, each in keywords.items()}
    in_place = name.endswith("_") and not name.startswith("_")
    if in_place and not (handler is elementwise and isinstance(arguments[0], ShardTensor)):
        raise BadValueError(
            "What is gathered or cut anew is a copy, which no operation in place would change.", given=name,
            allowed="in place: operations of single numbers, on the cut tensor itself",
            hint="take the operation without the underscore, or change the part",
        )  # fmt: skip
    if handler is not None:
        found = handler(function, *arguments, **keywords)
        if found is not NotImplemented:
            return found
    return fallback(function, *arguments, **keywords)


def first_shard(values: Any) -> ShardTensor | None:
    """Return the first ShardTensor among arguments, in lists too; None where there is none.

    Parameters
    ----------
    values : iterable
    """
    for each in values:
        found = each if isinstance(each, ShardTensor) else None
        if isinstance(each, list | tuple):
            found = first_shard(each)
        if found is not None:
            return found
    return None


def fallback(function: Any, *arguments: Any, **keywords: Any) -> Any:
    """Return what a function gives that is computed whole in every process; cut again where its size allows.

    Parameters
    ----------
    function : callable
    *arguments, **keywords
        Of the function.
    """
    first = first_shard((*arguments, *keywords.values()))
    if first is None:
        raise BadValueError("No argument is a ShardTensor.", given=getattr(function, "__name__", repr(function)))
    first.domain.fallbacks[getattr(function, "__name__", "?")] += 1

    def whole(value: Any) -> Any:
        if isinstance(value, ShardTensor):
            return value.full()
        return type(value)(map(whole, value)) if type(value) in (list, tuple) else value

    def again(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return type(value)(map(again, value)) if type(value) in (list, tuple) else value
        axis, length = first.axis, first.layout.length
        if value.dim() == first.dim() and value.shape[axis] == length:
            return ShardTensor(cut(value, first.domain, first.layout), first.domain, axis, first.layout.sizes)
        return value

    return again(function(*map(whole, arguments), **{key: whole(value) for key, value in keywords.items()}))


def aligned(value: Any, to: ShardTensor) -> Any:
    """Return what stands beside the parts of a tensor in an element-wise operation, or NotImplemented.

    Parameters
    ----------
    value : object
        A ShardTensor of as many dimensions is cut like ``to``; a plain tensor that spans the cut dimension is cut.
    to : ShardTensor
    """
    if isinstance(value, ShardTensor):
        if value.dim() != to.dim() or value.shape[to.axis] != to.layout.length or value.domain is not to.domain:
            return NotImplemented
        return value.moved(to.axis, to.layout.sizes).part
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return copied(value, to.domain) if isinstance(value, torch.Tensor) else value
    at = value.dim() - (to.dim() - to.axis)
    if value.dim() > to.dim():
        return NotImplemented
    shared = copied(value, to.domain)
    if at < 0 or value.shape[at] == 1:
        return shared
    if value.shape[at] != to.layout.length:
        return NotImplemented
    return shared.narrow(at, to.layout.begins()[to.domain.place], to.layout.sizes[to.domain.place])


@handles(
    "add", "sub", "mul", "div", "pow", "neg", "exp", "log", "sqrt", "rsqrt", "abs", "tanh", "sigmoid", "relu", "gelu",
    "silu", "leaky_relu", "elu", "softplus", "square", "clamp", "sin", "cos", "where", "detach", "clone", "contiguous",
    "rsub", "reciprocal", "eq", "ne", "lt", "le", "gt", "ge",
)  # fmt: skip
def elementwise(function: Any, *arguments: Any, **keywords: Any) -> Any:
    """Apply a function of single numbers to the parts."""
    first = first_shard(arguments)
    if first is None or keywords.get("out") is not None:
        return NotImplemented
    others = [aligned(each, first) for each in arguments]
    named = {key: aligned(value, first) for key, value in keywords.items()}
    if any(each is NotImplemented for each in (*others, *named.values())):
        return NotImplemented
    part = function(*others, **named)
    if part.dim() != first.dim() or part.shape[first.axis] != first.layout.sizes[first.domain.place]:
        return NotImplemented
    return first.like(part)


@handles("linear")
def linear(function: Any, x: ShardTensor, weight: Any, bias: Any = None) -> Any:
    """Multiply rows by a matrix, each where it lies."""
    if not isinstance(x, ShardTensor) or x.axis == x.dim() - 1:
        return NotImplemented
    shared = copied_together((weight, bias), x.domain)
    return x.like(function(x.part, *shared))


@handles("transpose", "swapaxes")
def transpose(function: Any, x: ShardTensor, dim0: int, dim1: int) -> ShardTensor:
    """Exchange two dimensions."""
    one, other = dim0 % x.dim(), dim1 % x.dim()
    axis = {one: other, other: one}.get(x.axis, x.axis)
    return ShardTensor(x.part.transpose(one, other), x.domain, axis, x.layout.sizes)


@handles("permute")
def permute(function: Any, x: ShardTensor, *dims: Any) -> ShardTensor:
    """Put the dimensions into another order."""
    order = [each % x.dim() for each in (dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims)]
    return ShardTensor(x.part.permute(order), x.domain, order.index(x.axis), x.layout.sizes)


@handles("reshape", "view")
def reshape(function: Any, x: ShardTensor, *shape: Any) -> ShardTensor:
    """Give the parts another shape, in which the cut dimension is still one of its own.

    Raises
    ------
    BadValueError
        If the shape joins the cut dimension with others, so that parts would no longer lie one after another.
    """
    wanted = list(shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)
    if -1 in wanted:
        known = -torch.Size(wanted).numel()
        wanted[wanted.index(-1)] = x.shape.numel() // known if known else 0
    before = torch.Size(x.shape[: x.axis]).numel()
    # Not even where there is nothing may a view have another number of places.
    same = torch.Size(wanted).numel() == x.shape.numel()
    for axis, size in enumerate(wanted):
        if same and torch.Size(wanted[:axis]).numel() == before:
            sizes = _joined_or_split(x.layout, size)
            if sizes is not None:
                local = [*wanted[:axis], sizes[x.domain.place], *wanted[axis + 1 :]]
                return ShardTensor(x.part.reshape(local), x.domain, axis, sizes)
    raise BadValueError(
        "A view would cut through the parts of a tensor.", given=f"{tuple(x.shape)} as {tuple(wanted)}",
        allowed=f"shapes with dimension {x.axis} of size {x.layout.length}, alone or as the first of a joint one",
        hint="move the cut to another dimension first",
    )  # fmt: skip


def _joined_or_split(layout: Layout, size: int) -> tuple[int, ...] | None:
    """Sizes of the parts of a dimension that begins where the cut one began; None where a part would be cut."""
    length = layout.length
    if not length or not size:
        return layout.sizes if size == length else None
    if size % length == 0:
        return tuple(each * (size // length) for each in layout.sizes)
    inner = length // size
    if length % size or any(each % inner for each in layout.sizes):
        return None
    return tuple(each // inner for each in layout.sizes)


@handles("flatten")
def flatten(function: Any, x: ShardTensor, start_dim: int = 0, end_dim: int = -1) -> ShardTensor:
    """Join neighbouring dimensions; the cut one can only be the first of them."""
    first, last = start_dim % x.dim(), end_dim % x.dim()
    shape = x.shape
    return reshape(function, x, [*shape[:first], shape[first : last + 1].numel(), *shape[last + 1 :]])


@handles("cat")
def cat(function: Any, tensors: Sequence[Any], dim: int = 0) -> Any:
    """Put tensors beside each other, along a dimension that is not cut."""
    first = first_shard(tensors)
    if first is None or dim % first.dim() == first.axis:
        return NotImplemented
    parts = [aligned(each, first) for each in tensors]
    return NotImplemented if any(each is NotImplemented for each in parts) else first.like(torch.cat(parts, dim))


@handles("narrow")
def narrow(function: Any, x: ShardTensor, dim: int, start: int, length: int) -> ShardTensor:
    """Take a piece of a dimension; of the cut one, each process keeps what it has of it."""
    dim %= x.dim()
    if dim != x.axis:
        return x.like(x.part.narrow(dim, start, length))
    start += x.shape[dim] if start < 0 else 0
    if start < 0 or length < 0 or start + length > x.shape[dim]:
        raise BadValueError("A piece lies within its dimension.", given=(start, length),
                            allowed=f"within 0 to {x.shape[dim]}")  # fmt: skip
    begins = x.layout.begins()
    cuts = [min(max(each, start), start + length) for each in begins]
    sizes = [high - low for low, high in pairwise(cuts)]
    place = x.domain.place
    part = x.part.narrow(dim, cuts[place] - begins[place] if sizes[place] else 0, sizes[place])
    return ShardTensor(part, x.domain, dim, sizes)
