"""Other ways to a step on one sample: torch's DTensor, gathering before every layer, and one process alone."""

from __future__ import annotations

import contextlib
import copy
from dataclasses import dataclass
from typing import Any

from wavetank.training.domains.interface import Layout, Outcome, even_sizes

# Of torch 2.13: it computes these forward, and has no rule for what their backward pass calls on processors.
_NO_BACKWARD = ("Attention",)
# Layers of single numbers, for which nothing has to be gathered.
_PLACE_BY_PLACE = ("GELU",)
# Kinds of layers that DTensor does not keep in parts on a number of processes, as their first step found: no other step
# tries them.  All processes of a domain take the same steps, so that all know the same.
_WHOLE: set[tuple[str, int]] = set()


@dataclass(frozen=True, kw_only=True)
class OneProcess:
    """The first process has the whole sample and does everything; the others wait."""

    def step(self, domain: Any, network: Any, sample: Any, target: Any, layout: Layout) -> Outcome:
        """Run the step.

        Parameters
        ----------
        domain, network, sample, target, layout
            As for :class:`wavetank.training.domains.interface.Divider`.
        """
        from torch.nn import functional

        if domain.place:
            return Outcome(float("nan"), None, layout, None, layout)
        whole = sample.detach().requires_grad_()
        out = network(whole)
        loss = functional.mse_loss(out, target)
        loss.backward()
        rest = [0] * (domain.size - 1)
        return Outcome(
            loss.item(), out.detach(), Layout(layout.axis, (out.shape[layout.axis], *rest)), whole.grad, layout
        )

    def sizes(self, length: int, processes: int, cuts: tuple[int, ...]) -> tuple[int, ...]:
        """Return how a dimension is cut for this way.

        Parameters
        ----------
        length, processes : int
        cuts : tuple of int
            How it would be cut otherwise.
        """
        return (length, *[0] * (processes - 1))


@dataclass(frozen=True, kw_only=True)
class GatherComputeScatter:
    """Before every layer that looks at more than one place all parts are gathered; every process computes it whole and
    keeps its part.
    """

    def step(self, domain: Any, network: Any, sample: Any, target: Any, layout: Layout) -> Outcome:
        """Run the step.

        Parameters
        ----------
        domain, network, sample, target, layout
            As for :class:`wavetank.training.domains.interface.Divider`.
        """
        from wavetank.training.domains.exchange import cut, gather, total

        part = sample.detach().requires_grad_()
        held, at = part, layout
        for layer in network:
            if type(layer).__name__ in _PLACE_BY_PLACE:
                held = layer(held)
                continue
            domain.fallbacks[type(layer).__name__] += 1
            whole = layer(gather(held, domain, at))
            sizes = at.sizes if whole.shape[at.axis] == at.length else even_sizes(whole.shape[at.axis], domain.size)
            at = Layout(at.axis, sizes)
            held = cut(whole, domain, at)
        wanted = target.narrow(at.axis, at.begins()[domain.place], at.sizes[domain.place])
        loss = total(((held - wanted) ** 2).sum(), domain) / target.numel()
        loss.backward()
        return Outcome(loss.item(), held.detach(), at, part.grad, layout)


@dataclass(frozen=True, kw_only=True)
class DTensorWay:
    """torch's DTensor: parts as even as torch cuts them; a layer that it cannot compute on parts is gathered."""

    def step(self, domain: Any, network: Any, sample: Any, target: Any, layout: Layout) -> Outcome:
        """Run the step.

        Parameters
        ----------
        domain, network, sample, target, layout
            As for :class:`wavetank.training.domains.interface.Divider`.
        """
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.tensor import DTensor, Replicate, Shard
        from torch.func import functional_call

        from wavetank.training.domains.exchange import total

        mesh = DeviceMesh.from_group(domain.group, "cpu")
        part = sample.detach().requires_grad_()
        held = DTensor.from_local(part, mesh, [Shard(layout.axis)], run_check=False)

        def everywhere(value: Any) -> Any:
            return DTensor.from_local(value, mesh, [Replicate()], run_check=False)

        for layer in network:
            found = None
            kind = type(layer).__name__
            if kind not in _NO_BACKWARD and (kind, domain.size) not in _WHOLE:
                # Running figures must not be touched by an attempt that fails.
                kept = copy.deepcopy(dict(layer.named_buffers()))
                weights = {name: everywhere(value) for name, value in layer.named_parameters()}
                buffers = {name: everywhere(value) for name, value in kept.items()}
                with contextlib.suppress(RuntimeError, NotImplementedError, AssertionError, ValueError, TypeError):
                    found = functional_call(layer, (weights, buffers), (held,))
            if found is None or not found.placements[0].is_shard(layout.axis):
                # Or is said to be whole: torch 2.13 says so of a convolution of parts, too, which is not.
                _WHOLE.add((kind, domain.size))
                domain.fallbacks[kind] += 1
                found = None
                whole = layer(held.redistribute(placements=[Replicate()]).to_local())
                found = everywhere(whole).redistribute(placements=[Shard(layout.axis)])
            held = found
        at = Layout(layout.axis, even_sizes(held.shape[layout.axis], domain.size))
        own = held.to_local()
        wanted = target.narrow(at.axis, at.begins()[domain.place], at.sizes[domain.place])
        # A DTensor's own mean over parts gives each of them the gradient of the whole.
        loss = total(((own - wanted) ** 2).sum(), domain) / target.numel()
        loss.backward()
        return Outcome(loss.item(), own.detach(), at, part.grad, layout)

    def sizes(self, length: int, processes: int, cuts: tuple[int, ...]) -> tuple[int, ...]:
        """Return how a dimension is cut for this way: as torch does.

        Parameters
        ----------
        length, processes : int
        cuts : tuple of int
            How it would be cut otherwise.
        """
        return even_sizes(length, processes)
