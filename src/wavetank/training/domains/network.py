"""A small network on fields of the atmosphere, of layers that torch has: convolutions, a norm, patches, attention.

It predicts coarse fields of another month from those of one.  The network knows nothing of domains.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

PATCH = 4
WINDOWS = (3, 5)


class Attention(nn.Module):  # type: ignore[misc]
    """Attention among all places of a field, with a residual.

    Parameters
    ----------
    channels : int
        A multiple of ``heads``.
    heads : int
    """

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(channels)
        self.query, self.key, self.value, self.out = (nn.Linear(channels, channels) for _ in range(4))

    def forward(self, field: Any) -> Any:
        """Return the field after attention.

        Parameters
        ----------
        field : torch.Tensor
            (samples, channels, rows, columns).
        """
        samples, channels, rows, columns = field.shape
        tokens = field.flatten(2).transpose(1, 2)
        normed = self.norm(tokens)

        def by_head(linear: Any) -> Any:
            split = linear(normed).reshape(samples, rows * columns, self.heads, channels // self.heads)
            return split.transpose(1, 2)

        seen = nn.functional.scaled_dot_product_attention(*map(by_head, (self.query, self.key, self.value)))
        mixed = tokens + self.out(seen.transpose(1, 2).reshape(samples, rows * columns, channels))
        return mixed.transpose(1, 2).reshape(samples, channels, rows, columns)


def network(fields: int, channels: int, heads: int, seed: int) -> Any:
    """Return the network in double precision, with weights that follow from the seed.

    Parameters
    ----------
    fields : int
        Channels of the sample, and of what is predicted.
    channels, heads : int
    seed : int
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(fields, channels, WINDOWS[0], padding="same"),
            nn.BatchNorm2d(channels),
            nn.GELU(),
            nn.Conv2d(channels, channels, WINDOWS[1], padding="same"),
            nn.GELU(),
            nn.Conv2d(channels, channels, PATCH, stride=PATCH),
            Attention(channels, heads),
            nn.Conv2d(channels, fields, 1),
        ).double()
