"""Keys of every type and distribution, and thresholds so low that short arrays take the paths of long ones."""

import numpy as np
import pytest

from wavetank.kernels.sorting import paged_sort
from wavetank.machine import thread_pool

UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def _keys(distribution, n, dtype, seed=1):
    dtype = np.dtype(dtype)
    rng = np.random.default_rng(seed)
    bits = UNSIGNED[dtype.itemsize]

    def typed(numbers):
        return (numbers & 1).astype(bool) if dtype.kind == "b" else numbers.astype(bits).view(dtype)

    uniform = typed(rng.integers(0, np.iinfo(bits).max, n, dtype=bits, endpoint=True))
    match distribution:
        case "uniform":
            return uniform
        case "zipf":
            ranks = np.minimum(rng.zipf(1.3, n), 1 << 30).astype(np.uint64)
            return typed(ranks * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(64 - 8 * dtype.itemsize))
        case "sorted":
            return np.sort(uniform)
        case "reversed":
            return np.sort(uniform)[::-1].copy()
        case "constant":
            return np.full(n, uniform[0])
        case "two-valued":
            return uniform[rng.integers(0, 2, n)]
        case "every value":
            return typed(rng.permutation(1 << 16))
        case "runs":
            return np.repeat(uniform[: n // 96 + 1], 96)[:n]
        case "close together":
            return typed(rng.integers(1000, 9000, n))
        case "one hot":
            return np.where(rng.random(n) < 0.97, uniform[0], uniform)
        case "late surprise":
            keys = np.full(n, uniform[0])
            keys[-2] = typed(np.array([77]))[0]
            return keys
    raise AssertionError(distribution)


@pytest.fixture(scope="session")
def make_keys():
    """Return a function of distribution, length and type."""
    return _keys


@pytest.fixture
def small_parts(monkeypatch):
    """Let threads share, and pages be split, at a few hundred keys."""
    monkeypatch.setattr(thread_pool, "_ITEMS_WORTH_A_THREAD", 1 << 8)
    monkeypatch.setattr(paged_sort, "PAGE_BYTES", 1 << 12)
    monkeypatch.setattr(paged_sort, "_LARGE_BYTES", 1 << 14)
