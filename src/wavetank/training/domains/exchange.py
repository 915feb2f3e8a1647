"""The processes of a domain, and what they exchange: differentiable moves of parts, and sums.

Gradients follow one convention.  What every process has alike (a weight, a loss, a gathered tensor) has a gradient that
is alike everywhere, too; what is cut has the gradient of its own part.  So a sum over processes gives its gradient to
each part as it is, and a copy that takes part in the work on a part adds the gradients of all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Function

from wavetank.errors import BadValueError
from wavetank.training.domains.interface import Layout


class Domain:
    """Some processes that share one sample.

    Parameters
    ----------
    members : sequence of int
        Numbers of the processes in torch's default group, this one among them.
    group : torch.distributed.ProcessGroup, optional
        Theirs; torch's default group when it is left out.

    Attributes
    ----------
    place, size : int
        This process among the members, and their number.
    sent_bytes : Counter
        Bytes that this process sent to others, by purpose.  An all-reduce counts as a ring: 2 (P - 1) / P of its size.
    fallbacks : Counter
        Operations without a handler, by name.
    """

    def __init__(self, members: Sequence[int], group: Any = None) -> None:
        if len(set(members)) != len(members) or dist.get_rank() not in members:
            raise BadValueError("A domain has members, this process among them.", given=list(members),
                                allowed=f"numbers of processes, {dist.get_rank()} among them")  # fmt: skip
        self.members, self.group = tuple(members), group
        self.size, self.place = len(self.members), self.members.index(dist.get_rank())
        self.sent_bytes: Counter[str] = Counter()
        self.fallbacks: Counter[str] = Counter()

    def swap(
        self, outgoing: Mapping[int, torch.Tensor], incoming: Mapping[int, Sequence[int]], like: torch.Tensor, what: str
    ) -> dict[int, torch.Tensor]:
        """Send tensors to other members and return those that come from them.

        Parameters
        ----------
        outgoing : mapping of int to torch.Tensor
            By place of the receiver.
        incoming : mapping of int to sequence of int
            Shape, by place of the sender; all know who sends what.
        like : torch.Tensor
            Of the dtype that comes.
        what : str
            The purpose, for ``sent_bytes``.
        """
        came = {place: like.new_empty(tuple(shape)) for place, shape in incoming.items()}
        works, kept = [], []
        for place, tensor in sorted(outgoing.items()):
            if tensor.numel():
                kept.append(tensor.contiguous())
                self.sent_bytes[what] += kept[-1].numel() * kept[-1].element_size()
                works.append(dist.isend(kept[-1], self.members[place], group=self.group))
        works += [
            dist.irecv(tensor, self.members[place], group=self.group)
            for place, tensor in sorted(came.items())
            if tensor.numel()
        ]
        for work in works:
            work.wait()
        return came

    def all_reduce(self, tensor: torch.Tensor, *, largest: bool = False) -> torch.Tensor:
        """Return the sum of a tensor over the members, or its largest values.

        Parameters
        ----------
        tensor : torch.Tensor
            Of one shape everywhere.
        largest : bool
        """
        found = tensor.detach().clone(memory_format=torch.contiguous_format)
        if self.size > 1 and found.numel():
            operation = dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM
            dist.all_reduce(found, operation, group=self.group)
            self.sent_bytes["sums"] += 2 * (self.size - 1) * found.numel() * found.element_size() // self.size
        return found


def _shape(tensor: torch.Tensor, axis: int, size: int) -> tuple[int, ...]:
    return (*tensor.shape[:axis], size, *tensor.shape[axis + 1 :])


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    low, high = max(one[0], other[0]), min(one[1], other[1])
    return low, max(low, high)


class _Fetch(Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, part: torch.Tensor, domain: Domain, layout: Layout, wanted: Any, padding: Any, filling: float,
        what: str,
    ) -> torch.Tensor:  # fmt: skip
        ctx.domain, ctx.layout, ctx.wanted, ctx.padding, ctx.what = domain, layout, wanted, padding, what
        begins, me, axis = layout.begins(), domain.place, layout.axis
        owned = [(begins[each], begins[each + 1]) for each in range(domain.size)]
        outgoing, incoming = {}, {}
        for other in range(domain.size):
            low, high = _overlap(owned[me], wanted[other])
            if other != me and high > low:
                outgoing[other] = part.narrow(axis, low - owned[me][0], high - low)
            low, high = _overlap(owned[other], wanted[me])
            if other != me and high > low:
                incoming[other] = _shape(part, axis, high - low)
        came = domain.swap(outgoing, incoming, part, what)
        low, high = _overlap(owned[me], wanted[me])
        came[me] = part.narrow(axis, low - owned[me][0] if high > low else 0, high - low)
        before, behind = padding
        # Everything is put into its place at once: a copy less than joining and padding.
        found = part.new_empty(_shape(part, axis, before + wanted[me][1] - wanted[me][0] + behind))
        found.narrow(axis, 0, before).fill_(filling)
        found.narrow(axis, found.shape[axis] - behind, behind).fill_(filling)
        for other, piece in came.items():
            at = max(owned[other][0], wanted[me][0]) - wanted[me][0] + before
            if piece.shape[axis]:
                found.narrow(axis, at, piece.shape[axis]).copy_(piece)
        return found

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        domain, layout, wanted = ctx.domain, ctx.layout, ctx.wanted
        begins, me, axis = layout.begins(), domain.place, layout.axis
        owned = [(begins[each], begins[each + 1]) for each in range(domain.size)]
        outgoing, incoming = {}, {}
        at = ctx.padding[0] - wanted[me][0]
        for other in range(domain.size):
            low, high = _overlap(owned[other], wanted[me])
            if other != me and high > low:
                outgoing[other] = grad.narrow(axis, low + at, high - low)
            low, high = _overlap(owned[me], wanted[other])
            if other != me and high > low:
                incoming[other] = _shape(grad, axis, high - low)
        came = domain.swap(outgoing, incoming, grad, ctx.what)
        low, high = _overlap(owned[me], wanted[me])
        found = grad.new_zeros(_shape(grad, axis, layout.sizes[me]))
        if high > low:
            found.narrow(axis, low - owned[me][0], high - low).copy_(grad.narrow(axis, low + at, high - low))
        for other, piece in sorted(came.items()):
            low, high = _overlap(owned[me], wanted[other])
            found.narrow(axis, low - owned[me][0], high - low).add_(piece)
        return found, None, None, None, None, None, None


def fetch(
    part: torch.Tensor, domain: Domain, layout: Layout, wanted: Sequence[tuple[int, int]], *,
    padding: tuple[int, int] = (0, 0), filling: float = 0.0, what: str = "halo",
) -> torch.Tensor:  # fmt: skip
    """Return the piece of the cut dimension that this process wants, from those that have it.

    Backward, each owner adds up what comes back.

    Parameters
    ----------
    part : torch.Tensor
        What this process has.
    domain : Domain
    layout : Layout
    wanted : sequence of tuple of int
        Begin and end in the whole dimension, by process; pieces may overlap.
    padding : tuple of int
        What this process adds before and behind.
    filling : float
        What it adds.
    what : str
        The purpose, for ``sent_bytes``.
    """
    begins = layout.begins()
    if padding == (0, 0) and tuple(wanted) == tuple(pairwise(begins)):
        return part
    found: torch.Tensor = _Fetch.apply(part, domain, layout, tuple(wanted), padding, filling, what)
    return found


class _Turn(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, domain: Domain, old: Layout, new: Layout) -> torch.Tensor:
        ctx.domain, ctx.old, ctx.new = domain, old, new
        return _turned(part, domain, old, new)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return _turned(grad, ctx.domain, ctx.new, ctx.old), None, None, None


def _turned(part: torch.Tensor, domain: Domain, old: Layout, new: Layout) -> torch.Tensor:
    begins, me = new.begins(), domain.place
    pieces = {each: part.narrow(new.axis, begins[each], new.sizes[each]) for each in range(domain.size)}
    own = pieces.pop(me)
    shapes = {each: _shape(own, old.axis, old.sizes[each]) for each in pieces}
    came = domain.swap(pieces, shapes, part, "turns") | {me: own}
    return torch.cat([came[each] for each in sorted(came)], old.axis)


def turn(part: torch.Tensor, domain: Domain, old: Layout, new: Layout) -> torch.Tensor:
    """Return this process's part under another layout, of another axis or with other sizes.

    Parameters
    ----------
    part : torch.Tensor
    domain : Domain
    old, new : Layout
    """
    if old.axis == new.axis:
        begins = new.begins()
        return fetch(part, domain, old, [*pairwise(begins)], what="turns")
    found: torch.Tensor = _Turn.apply(part, domain, old, new)
    return found


def _gathered(part: torch.Tensor, domain: Domain, layout: Layout) -> torch.Tensor:
    others = [each for each in range(domain.size) if each != domain.place]
    shapes = {each: _shape(part, layout.axis, layout.sizes[each]) for each in others}
    came = domain.swap(dict.fromkeys(others, part), shapes, part, "gathers") | {domain.place: part}
    return torch.cat([came[each] for each in sorted(came)], layout.axis)


def _own(whole: torch.Tensor, domain: Domain, layout: Layout) -> torch.Tensor:
    return whole.narrow(layout.axis, layout.begins()[domain.place], layout.sizes[domain.place])


class _Gather(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, domain: Domain, layout: Layout) -> torch.Tensor:
        ctx.domain, ctx.layout = domain, layout
        return _gathered(part, domain, layout)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return _own(grad, ctx.domain, ctx.layout).clone(), None, None


class _Cut(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, domain: Domain, layout: Layout) -> torch.Tensor:
        ctx.domain, ctx.layout = domain, layout
        return _own(whole, domain, layout).clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return _gathered(grad, ctx.domain, ctx.layout), None, None


class _Sum(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, domain: Domain) -> torch.Tensor:
        return domain.all_reduce(part)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad, None


class _Copy(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, domain: Domain) -> torch.Tensor:
        ctx.domain = domain
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return ctx.domain.all_reduce(grad), None


def gather(part: torch.Tensor, domain: Domain, layout: Layout) -> torch.Tensor:
    """Return the whole tensor, in every process.

    Parameters
    ----------
    part : torch.Tensor
    domain : Domain
    layout : Layout
    """
    found: torch.Tensor = _Gather.apply(part, domain, layout)
    return found


def cut(whole: torch.Tensor, domain: Domain, layout: Layout) -> torch.Tensor:
    """Return this process's part of a tensor that every process has.

    Parameters
    ----------
    whole : torch.Tensor
    domain : Domain
    layout : Layout
    """
    found: torch.Tensor = _Cut.apply(whole, domain, layout)
    return found


def total(part: torch.Tensor, domain: Domain) -> torch.Tensor:
    """Return the sum over processes, for a result that is the end of the work on parts, such as a loss.

    Parameters
    ----------
    part : torch.Tensor
    domain : Domain
    """
    found: torch.Tensor = _Sum.apply(part, domain)
    return found


def copied(value: torch.Tensor, domain: Domain) -> torch.Tensor:
    """Return a tensor that every process has alike, for work on parts: its gradient is the sum over processes.

    Parameters
    ----------
    value : torch.Tensor
    domain : Domain
    """
    if not value.requires_grad:
        return value
    found: torch.Tensor = _Copy.apply(value, domain)
    return found


class _Copies(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, domain: Domain, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.domain = domain
        return tuple(value.view_as(value) for value in values)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        added = ctx.domain.all_reduce(torch.cat([grad.reshape(-1) for grad in grads]))
        split = added.split([grad.numel() for grad in grads])
        return None, *(part.reshape(grad.shape) for part, grad in zip(split, grads, strict=True))


def copied_together(values: Sequence[torch.Tensor | None], domain: Domain) -> list[torch.Tensor | None]:
    """Return what :func:`copied` returns of each, whose gradients are added in one message.

    Parameters
    ----------
    values : sequence of torch.Tensor or None
        Of one operation, such as its weight and its bias.
    domain : Domain
    """
    found = list(values)
    shared = [at for at, value in enumerate(found) if value is not None and value.requires_grad]
    if len({found[at].dtype for at in shared}) != 1:  # type: ignore[union-attr]
        return [None if value is None else copied(value, domain) for value in found]
    for at, value in zip(shared, _Copies.apply(domain, *(found[at] for at in shared)), strict=True):
        found[at] = value
    return found


def shared_total(part: torch.Tensor, domain: Domain) -> torch.Tensor:
    """Return the sum over processes, for further work on parts, such as a mean that is taken off.

    Parameters
    ----------
    part : torch.Tensor
    domain : Domain
    """
    return copied(total(part, domain), domain)
