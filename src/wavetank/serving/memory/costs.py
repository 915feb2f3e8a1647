"""What a node is and what a request costs on it."""

from __future__ import annotations

from dataclasses import dataclass

from wavetank.settings import check_ranges, setting


@dataclass(frozen=True, kw_only=True)
class Node:
    """One GPU that serves a generative recommender: eight layers of width 256 by default, histories of thousands of
    tokens, and an embedding table that does not fit into the memory.

    A request appends new tokens to a user's history.  Where the history's keys and values are resident, these tokens
    alone are computed; else the whole history is, and its embedding rows are looked up again.
    """

    memory_bytes: float = setting(20e9, unit="bytes", says="Memory that both caches share", low=1e6, high=1e15)
    layers: int = setting(8, says="Layers of the model", low=1, high=1000)
    width: int = setting(256, says="Hidden size of the model", low=1, high=100_000)
    rows: int = setting(20_000_000, unit="", says="Rows of the embedding table", low=1, high=10**12)
    row_bytes: int = setting(1024, unit="bytes", says="Size of a row", low=1, high=10**9)
    rows_per_token: int = setting(16, says="Rows that a token looks up", low=1, high=10_000)
    users: int = setting(1500, says="Users that the node serves", low=1, high=10**7)
    new_tokens: int = setting(256, unit="tokens", says="Tokens of a request, candidates included", low=1, high=10**6)
    copy_bytes_per_s: float = setting(
        6e9, unit="bytes/s", says="Rate at which rows are gathered from the host", low=1e3, high=1e13
    )
    flops_per_s: float = setting(60e12, says="Operations per second that the model reaches", low=1e6, high=1e18)
    refill_share: float = setting(
        0.1, says="Share of the gathering rate that copying in the background may take", low=0.0, high=0.9
    )

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token in bf16, over all layers."""
        return 2 * self.layers * self.width * 2

    def compute_s(self, tokens: float, context: float) -> float:
        """Return the time of the model for some tokens.

        Parameters
        ----------
        tokens : float
            Tokens that are computed.
        context : float
            Tokens that each attends to, on average.
        """
        d = self.width
        return self.layers * (8.0 * tokens * d * d + 4.0 * tokens * context * d) / self.flops_per_s
