"""What a step may do instead: read everything, blocks of one length for all heads, the ends, or blocks by chance."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from wavetank.errors import BadValueError
from wavetank.kernels.balanced_assignment import longest_first
from wavetank.machine.cuda import require_torch
from wavetank.machine.threads import allowed_threads, together
from wavetank.serving.attention.interface import Cache, Floats, Ints
from wavetank.serving.attention.kernels import attend_ranges
from wavetank.serving.attention.sparse_kv import SparseKV, check_cache, check_query
from wavetank.settings import check_ranges, setting
from wavetank.sim.rng import stream

_THREADS: Any = {"says": "Threads to use; None for all allowed threads", "low": 1, "high": 4096}


class _Chosen:
    """A cache of which each query reads tokens that a subclass chooses, by the compiled attention of all systems.

    What was chosen for a query is kept: of a query that comes again the time is that of reading alone.
    """

    summary_bytes = 0

    def __init__(self, cache: Cache, budget: int, threads: int | None) -> None:
        self.keys, self.values = check_cache(cache.keys, cache.values, "attention")
        self.heads, self.tokens, self.dim = self.keys.shape
        if not 1 <= budget <= self.tokens:
            raise BadValueError("The budget is no part of the cache.", given=budget, allowed=f"1 to {self.tokens}")
        self.budget, self._threads = budget, allowed_threads(threads)
        bins = longest_first(np.ones(self.heads), np.zeros(self.heads), min(self._threads, self.heads))
        self._parts = [np.flatnonzero(bins == each) for each in range(min(self._threads, self.heads))]
        self._known: dict[bytes, tuple[list[Ints], tuple[Ints, Ints, Ints]]] = {}

    def chosen(self, grouped: Floats) -> list[Ints]:
        """Return the tokens of each head, ascending, for a query (key heads, group, dim)."""
        return [np.arange(self.tokens)] * self.heads

    def _choice(self, grouped: Floats) -> tuple[list[Ints], tuple[Ints, Ints, Ints]]:
        """Return the tokens of each head and their ranges: starts and stops (key heads, most), and how many."""
        key = grouped.tobytes()
        if key not in self._known:
            tokens = self.chosen(grouped)
            self._known[key] = tokens, self._ranges_of(tokens)
        return self._known[key]

    def _ranges_of(self, chosen: list[Ints]) -> tuple[Ints, Ints, Ints]:
        found = []
        for tokens in chosen:
            breaks = np.flatnonzero(np.diff(tokens) != 1) + 1
            found.append((tokens[np.r_[0, breaks]], tokens[np.r_[breaks - 1, tokens.size - 1]] + 1))
        counts = np.array([starts.size for starts, _ in found], np.int64)
        both = np.zeros((2, self.heads, int(counts.max())), np.int64)
        for head, (starts, stops) in enumerate(found):
            both[0, head, : starts.size], both[1, head, : stops.size] = starts, stops
        return both[0], both[1], counts

    def attend(self, query: object) -> Floats:
        """Return attention over the chosen tokens, float32 (heads, dim)."""
        grouped = check_query(query, self.heads, self.dim, "attention")
        out = np.empty_like(grouped)
        scaled = grouped * np.float32(1 / np.sqrt(self.dim))
        rest = (scaled, self.keys, self.values, *self._choice(grouped)[1], out)
        together(attend_ranges, [(part, *rest) for part in self._parts], self._threads)
        return out.reshape(-1, self.dim)

    def selected(self, query: object) -> list[Ints]:
        """Return the tokens that the answer is computed from, for each head of keys."""
        return self._choice(check_query(query, self.heads, self.dim, "attention"))[0]

    @property
    def read_bytes(self) -> int:
        """Bytes of the keys and values that a step reads."""
        return self.heads * self.budget * self.dim * 8


class _Dense(_Chosen):
    """Everything is read."""

    def __init__(self, cache: Cache, threads: int | None) -> None:
        super().__init__(cache, cache.keys.shape[1], threads)


class _Torch(_Dense):
    """Everything is read, by torch."""

    def __init__(self, cache: Cache) -> None:
        super().__init__(cache, None)
        self._torch = require_torch("The system torch-sdpa")
        self._tensors = [self._torch.from_numpy(each)[None] for each in (self.keys, self.values)]

    def attend(self, query: object) -> Floats:
        """Return attention over all tokens; queries of a group are rows of one head, so that nothing is repeated."""
        grouped = check_query(query, self.heads, self.dim, "attention")
        with self._torch.inference_mode():
            found = self._torch.nn.functional.scaled_dot_product_attention(
                self._torch.from_numpy(grouped)[None], *self._tensors
            )
        return np.asarray(found[0].numpy(), np.float32).reshape(-1, self.dim)


class _Ends(_Chosen):
    """The first and the last tokens are read."""

    def __init__(self, cache: Cache, budget: int, sinks: int, threads: int | None) -> None:
        super().__init__(cache, budget, threads)
        first = min(sinks, budget)
        self._tokens = np.r_[0:first, self.tokens - budget + first : self.tokens]

    def chosen(self, grouped: Floats) -> list[Ints]:
        """Return the ends."""
        return [self._tokens] * self.heads


class _ByChance(_Chosen):
    """The first and the last block are read, and others that chance decides."""

    def __init__(self, cache: Cache, budget: int, block: int, seed: int, threads: int | None) -> None:
        super().__init__(cache, budget, threads)
        self._block, self._seed = min(block, budget), seed
        self.budget = budget // self._block * self._block

    def chosen(self, grouped: Floats) -> list[Ints]:
        """Return blocks by the query's digits: the same for the same query."""
        rng = stream(self._seed, "random-blocks", zlib.crc32(grouped.tobytes()))
        count, found = self.tokens // self._block, []
        for _ in range(self.heads):
            wanted = min(self.budget // self._block, count)
            others = 1 + rng.permutation(max(count - 2, 0))[: max(wanted - 2, 0)]
            blocks = np.unique(np.r_[0, count - 1, others])[:wanted] if wanted > 1 else np.zeros(1, np.int64)
            found.append((blocks[:, None] * self._block + np.arange(self._block)).ravel())
        return found


class _Oracle(_Chosen):
    """The tokens with most attention of a group together are read, whatever it takes to find them."""

    def chosen(self, grouped: Floats) -> list[Ints]:
        """Return the best tokens there are."""
        found = []
        for head in range(self.heads):
            products = grouped[head] @ self.keys[head].T * np.float32(1 / np.sqrt(self.dim))
            shares = np.exp(products - products.max(1, keepdims=True))
            shares /= shares.sum(1, keepdims=True)
            best = np.argpartition(shares.sum(0), self.tokens - self.budget)[self.tokens - self.budget :]
            found.append(np.sort(best))
        return found


@dataclass(frozen=True, kw_only=True)
class DenseAttention:
    """Reads all keys and values, in the compiled code that the others use for their tokens."""

    threads: int | None = setting(None, **_THREADS)

    def __post_init__(self) -> None:
        check_ranges(self)

    def build(self, cache: Cache, budget: int, calibration: Cache) -> _Chosen:
        """Return a cache that is read whole; the budget does not matter."""
        return _Dense(cache, self.threads)


@dataclass(frozen=True, kw_only=True)
class TorchAttention:
    """Reads all keys and values, by ``torch.nn.functional.scaled_dot_product_attention``, on torch's threads."""

    def build(self, cache: Cache, budget: int, calibration: Cache) -> _Chosen:
        """Return a cache that is read whole; the budget does not matter."""
        return _Torch(cache)


@dataclass(frozen=True, kw_only=True)
class UniformBlocks:
    """Reads the best blocks, which have one length in all heads."""

    block: int = setting(32, unit="tokens", says="Length of a block", low=1, high=65536)
    summary: str = setting("box", says="What is kept of a block: greatest and least, or mean and distance",
                           choices=("box", "ball"))  # fmt: skip
    reach: float = setting(1.0, says="Of a ball, the share of its radius that counts", low=0, high=1)
    bits: int = setting(32, says="Bits a number of a summary", choices=(4, 32))
    combine: str = setting("sum", says="A block's score over the queries of a group", choices=("max", "sum"))
    threads: int | None = setting(None, **_THREADS)

    def __post_init__(self) -> None:
        check_ranges(self)

    def build(self, cache: Cache, budget: int, calibration: Cache) -> SparseKV:
        """Return a cache in blocks; nothing is learned from the calibration."""
        return SparseKV(
            cache.keys, cache.values, budget, blocks=self.block, summary=self.summary, bits=self.bits,
            combine=self.combine, reach=self.reach, threads=self.threads,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SinkRecent:
    """Reads the first tokens, which collect attention that goes nowhere, and the last ones."""

    sinks: int = setting(4, unit="tokens", says="First tokens that are kept", low=0, high=2**31 - 1)
    threads: int | None = setting(None, **_THREADS)

    def __post_init__(self) -> None:
        check_ranges(self)

    def build(self, cache: Cache, budget: int, calibration: Cache) -> _Chosen:
        """Return a cache whose ends are read."""
        return _Ends(cache, budget, self.sinks, self.threads)


@dataclass(frozen=True, kw_only=True)
class RandomBlocks:
    """Reads the first block, the last one, and others that chance decides anew for each query."""

    block: int = setting(32, unit="tokens", says="Length of a block", low=1, high=65536)
    seed: int = setting(0, says="Start of its own random stream", low=0, high=2**31 - 1)
    threads: int | None = setting(None, **_THREADS)

    def __post_init__(self) -> None:
        check_ranges(self)

    def build(self, cache: Cache, budget: int, calibration: Cache) -> _Chosen:
        """Return a cache of which chance reads a part."""
        return _ByChance(cache, budget, self.block, self.seed, self.threads)


@dataclass(frozen=True, kw_only=True)
class TokenOracle:
    """Reads the tokens that have most attention, found by full attention before: no choice of as many has more."""

    threads: int | None = setting(None, **_THREADS)

    def __post_init__(self) -> None:
        check_ranges(self)

    def build(self, cache: Cache, budget: int, calibration: Cache) -> _Chosen:
        """Return a cache of which the best tokens are read."""
        return _Oracle(cache, budget, self.threads)
