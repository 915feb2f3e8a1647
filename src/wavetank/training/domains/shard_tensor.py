"""Domain parallelism: one sample's space is divided over processes, and the network is an ordinary one.

A tensor that knows the sizes of all its parts, uneven ones too, takes the place of the sample.  Convolutions fetch the
strips that they look at, attention lets keys and values travel, norms add up what parts have, and weights stay whole.
So memory falls with the number of processes where gathering would keep it, and what is computed is what one process
would have computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wavetank.training.domains.interface import Layout, Outcome


@dataclass(frozen=True, kw_only=True)
class DomainParallel:
    """A step on a :class:`wavetank.training.domains.sharded.ShardTensor`."""

    def step(self, domain: Any, network: Any, sample: Any, target: Any, layout: Layout) -> Outcome:
        """Run the step on this process's part of the sample.

        Parameters
        ----------
        domain : wavetank.training.domains.exchange.Domain
        network : torch.nn.Module
        sample : torch.Tensor
        target : torch.Tensor
            Whole.
        layout : Layout
        """
        from torch.nn import functional

        # Importing them registers what they handle.
        from wavetank.training.domains import halo, norms, ring  # noqa: F401
        from wavetank.training.domains.sharded import ShardTensor

        part = sample.detach().requires_grad_()
        out = network(ShardTensor(part, domain, layout.axis, layout.sizes))
        loss = functional.mse_loss(out, target)
        loss.backward()
        return Outcome(loss.item(), out.part.detach(), out.layout, part.grad, layout)
