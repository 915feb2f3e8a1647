"""Generate request traces from a seed: arrivals, lengths and shared prefixes, each drawn from its own stream.

Arrivals come from a Poisson process, a renewal process with gamma gaps (bursts) or a Poisson process whose rate
follows the time of day.  Lengths come from log-normal distributions with the published mean and median of a real
trace, from the quantiles of a trace at hand, or are fixed.  A longer trace begins with the shorter one of the same
seed.

Sources: P. A. W. Lewis and G. S. Shedler, "Simulation of nonhomogeneous Poisson processes by thinning", 1979; means and
medians of the Azure LLM inference traces of November 2023 (P. Patel et al., "Splitwise", ISCA 2024), taken over all
19,366 chat and 8,819 code requests.

Differs from the sources:

1. The real lengths are not log-normal: mean and median agree, the tails do not.  ``fit_lengths`` keeps the tails.
2. Prompt and output are coupled by a Gaussian copula, which carries their rank correlation and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from wavetank.errors import BadValueError, unknown_name
from wavetank.sim.rng import stream
from wavetank.workloads.requests import FloatArray, IntArray, RequestTrace


def _check(holds: bool, name: str, given: object, allowed: str) -> None:
    if not holds:
        raise BadValueError(f"{name} is outside its range.", given=given, allowed=allowed, where=name)


class Arrivals(Protocol):
    """Draws arrival times."""

    def draw(
        self, rate_per_s: float, rng: np.random.Generator, *, n: int | None = None, duration_s: float | None = None
    ) -> FloatArray:
        """Return ``n`` arrival times in seconds, or all before ``duration_s``, ascending; one of the two is given."""


class Lengths(Protocol):
    """Draws prompt and output lengths."""

    def draw(self, n: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        """Return ``n`` prompt lengths and ``n`` output lengths in tokens, each >= 1."""


@dataclass(frozen=True, kw_only=True)
class Poisson:
    """Independent arrivals: exponential gaps."""

    def draw(
        self, rate_per_s: float, rng: np.random.Generator, *, n: int | None = None, duration_s: float | None = None
    ) -> FloatArray:
        """Return ``n`` arrival times in seconds, or all before ``duration_s``."""
        return _renewal(1.0, rate_per_s, rng, n, duration_s)


@dataclass(frozen=True, kw_only=True)
class Bursty:
    """Arrivals in bursts: independent gamma gaps.

    Parameters
    ----------
    cv : float
        Coefficient of variation of the gaps, > 0; 1 is Poisson, below 1 is smoother than Poisson.
    """

    cv: float = 4.0

    def __post_init__(self) -> None:
        _check(0 < self.cv < math.inf, "cv", self.cv, "a number above 0")

    def draw(
        self, rate_per_s: float, rng: np.random.Generator, *, n: int | None = None, duration_s: float | None = None
    ) -> FloatArray:
        """Return ``n`` arrival times in seconds, or all before ``duration_s``."""
        return _renewal(self.cv, rate_per_s, rng, n, duration_s)


@dataclass(frozen=True, kw_only=True)
class Diurnal:
    """Independent arrivals whose rate swings as a sine around its mean, which it has at time 0, rising.

    The mean holds over whole periods: a trace of a quarter of a period sees the way from the mean to the peak only.

    Parameters
    ----------
    peak_to_trough : float
        Highest over lowest rate, >= 1.
    period_s : float
        Seconds from peak to peak.
    """

    peak_to_trough: float = 4.0
    period_s: float = 86_400.0

    def __post_init__(self) -> None:
        _check(1 <= self.peak_to_trough < math.inf, "peak_to_trough", self.peak_to_trough, "a number of at least 1")
        _check(0 < self.period_s < math.inf, "period_s", self.period_s, "a number above 0")

    def rate_per_s(self, mean_per_s: float, time_s: FloatArray) -> FloatArray:
        """Return the arrival rate in requests per second at ``time_s``."""
        swing = (self.peak_to_trough - 1) / (self.peak_to_trough + 1)
        rate: FloatArray = mean_per_s * (1 + swing * np.sin(2 * math.pi * time_s / self.period_s))
        return rate

    def draw(
        self, rate_per_s: float, rng: np.random.Generator, *, n: int | None = None, duration_s: float | None = None
    ) -> FloatArray:
        """Return ``n`` arrival times in seconds, or all before ``duration_s``."""
        peak_over_mean = 2 * self.peak_to_trough / (self.peak_to_trough + 1)
        peak_per_s = rate_per_s * peak_over_mean

        def thinned(now_s: float, size: int) -> tuple[FloatArray, float]:
            draws = rng.random((int(size * peak_over_mean), 2))
            times_s = now_s + np.cumsum(-np.log1p(-draws[:, 0])) / peak_per_s
            kept = draws[:, 1] * peak_per_s < self.rate_per_s(rate_per_s, times_s)
            return times_s[kept], float(times_s[-1])

        return _gathered(thinned, rate_per_s, n, duration_s)


@dataclass(frozen=True, kw_only=True)
class FixedLengths:
    """Every request alike.

    Parameters
    ----------
    prompt_tokens, output_tokens : int
        Lengths in tokens, >= 1.
    """

    prompt_tokens: int
    output_tokens: int

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "output_tokens"):
            value = getattr(self, name)
            _check(value == int(value) and value >= 1, name, value, "a whole number of at least 1")

    def draw(self, n: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        """Return the two lengths ``n`` times over."""
        return np.full(n, self.prompt_tokens, dtype=np.int64), np.full(n, self.output_tokens, dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class LogNormalLengths:
    """Log-normal prompt and output lengths of given mean and median, rounded, clipped to a plausible range.

    Parameters
    ----------
    prompt_mean, prompt_median, output_mean, output_median : float
        In tokens; a mean is not below its median.
    prompt_max, output_max : int
        Longest lengths in tokens; the shortest are 1.  Far in the tail, so that clipping moves no mean by more than
        about 1 %.
    rank_correlation : float
        Spearman's correlation of prompt and output lengths.
    """

    prompt_mean: float
    prompt_median: float
    output_mean: float
    output_median: float
    prompt_max: int
    output_max: int
    rank_correlation: float = 0.0

    def __post_init__(self) -> None:
        for side in ("prompt", "output"):
            mean, median, longest = (getattr(self, f"{side}_{name}") for name in ("mean", "median", "max"))
            _check(1 <= median < math.inf, f"{side}_median", median, "a number of at least 1")
            _check(median <= mean < math.inf, f"{side}_mean", mean, f"at least the median, {median}")
            _check(longest >= mean, f"{side}_max", longest, f"at least the mean, {mean}")
        _check(-1 <= self.rank_correlation <= 1, "rank_correlation", self.rank_correlation, "-1 to 1")

    def draw(self, n: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        """Return ``n`` prompt lengths and ``n`` output lengths in tokens."""
        first, second = _coupled_normals(n, self.rank_correlation, rng)
        return (
            _log_normal(first, self.prompt_mean, self.prompt_median, self.prompt_max),
            _log_normal(second, self.output_mean, self.output_median, self.output_max),
        )


@dataclass(frozen=True, kw_only=True)
class QuantileLengths:
    """Lengths with given quantiles, evenly spaced from the shortest to the longest and joined by straight lines.

    Parameters
    ----------
    prompt_quantiles, output_quantiles : tuple of float
        At least two each, rising, >= 1, in tokens: the quantiles at 0, 1/(k-1), ..., 1.
    rank_correlation : float
        Spearman's correlation of prompt and output lengths.
    """

    prompt_quantiles: tuple[float, ...]
    output_quantiles: tuple[float, ...]
    rank_correlation: float = 0.0

    def __post_init__(self) -> None:
        for name in ("prompt_quantiles", "output_quantiles"):
            values = getattr(self, name)
            rising = len(values) >= 2 and values[0] >= 1 and all(np.diff(values) >= 0) and math.isfinite(values[-1])
            _check(rising, name, f"{len(values)} values", "two or more rising numbers, the first at least 1")
        _check(-1 <= self.rank_correlation <= 1, "rank_correlation", self.rank_correlation, "-1 to 1")

    def draw(self, n: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        """Return ``n`` prompt lengths and ``n`` output lengths in tokens."""
        from scipy.special import ndtr

        first, second = _coupled_normals(n, self.rank_correlation, rng)
        return _at_quantile(ndtr(first), self.prompt_quantiles), _at_quantile(ndtr(second), self.output_quantiles)


@dataclass(frozen=True, kw_only=True)
class SharedPrefix:
    """Some requests begin with one of a few common texts, such as system prompts.

    Prompt lengths stay as drawn: of a prompt shorter than the common text only its full blocks are shared.

    Parameters
    ----------
    share : float
        Probability that a request begins with a common text, 0 to 1.
    groups : int
        Number of common texts.
    prefix_tokens : int
        Length of a common text in tokens; only its full blocks can be shared.
    zipf : float
        Popularity of the k-th text is proportional to ``k ** -zipf``; 0 is even.
    block_tokens : int
        Tokens of a full prefix block.
    """

    share: float = 0.5
    groups: int = 16
    prefix_tokens: int = 1024
    zipf: float = 1.0
    block_tokens: int = 512

    def __post_init__(self) -> None:
        _check(0 <= self.share <= 1, "share", self.share, "0 to 1")
        _check(self.groups >= 1, "groups", self.groups, "a whole number of at least 1")
        _check(0 <= self.zipf < math.inf, "zipf", self.zipf, "a number of at least 0")
        _check(self.block_tokens >= 1, "block_tokens", self.block_tokens, "a whole number of at least 1")
        _check(
            self.prefix_tokens >= self.block_tokens, "prefix_tokens", self.prefix_tokens,
            f"at least one block, {self.block_tokens} tokens",
        )  # fmt: skip

    def draw(self, prompt_tokens: IntArray, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        """Return the block ids and block offsets of prompts of the given lengths."""
        draws = rng.random((prompt_tokens.size, 2))
        popularity = np.cumsum(np.arange(1, self.groups + 1) ** -float(self.zipf))
        group = np.searchsorted(popularity, draws[:, 1] * popularity[-1], side="right")
        depth = self.prefix_tokens // self.block_tokens
        shared = np.where(draws[:, 0] < self.share, np.minimum(depth, prompt_tokens // self.block_tokens), 0)
        counts = -(-prompt_tokens // self.block_tokens)
        offsets = np.concatenate(([0], np.cumsum(counts)))
        everything = np.arange(offsets[-1])
        position = everything - np.repeat(offsets[:-1], counts)
        common = np.repeat(group * depth, counts) + position
        own = self.groups * depth + everything
        return np.where(position < np.repeat(shared, counts), common, own), offsets


CONV = LogNormalLengths(
    prompt_mean=1154.7, prompt_median=1020.0, output_mean=211.1, output_median=129.0,
    prompt_max=8192, output_max=4096, rank_correlation=0.073,
)  # fmt: skip
"""Chat: the Azure conversation trace of November 2023; prompts of 1 to 8,192 and outputs of 1 to 4,096 tokens."""

CODE = LogNormalLengths(
    prompt_mean=2047.8, prompt_median=1469.0, output_mean=27.9, output_median=13.0,
    prompt_max=16384, output_max=2048, rank_correlation=-0.021,
)  # fmt: skip
"""Code completion: the Azure code trace of November 2023; prompts of 1 to 16,384, outputs of 1 to 2,048 tokens."""

_ARRIVALS: dict[str, Arrivals] = {"poisson": Poisson(), "bursty": Bursty(), "diurnal": Diurnal()}
_LENGTHS: dict[str, Lengths] = {"conv": CONV, "code": CODE}


def generate_requests(
    *,
    rate_per_s: float,
    n_requests: int | None = None,
    duration_s: float | None = None,
    arrivals: str | Arrivals = "poisson",
    lengths: str | Lengths | tuple[str, int, int] = "conv",
    seed: int = 0,
    shared_prefix: SharedPrefix | None = None,
) -> RequestTrace:
    """Generate a trace of LLM requests.

    Parameters
    ----------
    rate_per_s : float
        Mean arrival rate in requests per second, > 0.
    n_requests : int, optional
        Number of requests.  Either this or ``duration_s``.
    duration_s : float, optional
        Seconds during which requests arrive.
    arrivals : {"poisson", "bursty", "diurnal"} or Arrivals
        The arrival process; the names stand for :class:`Poisson`, :class:`Bursty` (coefficient of variation 4) and
        :class:`Diurnal` (peak 4 times trough, period one day).
    lengths : {"conv", "code"}, Lengths or ("fixed", prompt_tokens, output_tokens)
        The lengths; the names stand for :data:`CONV` and :data:`CODE`.
    seed : int
        Equal seeds give equal traces.
    shared_prefix : SharedPrefix, optional
        Gives the prompts prefix blocks, some of them in common.

    Returns
    -------
    RequestTrace
        Starting at time 0; the first request arrives one gap later.

    Raises
    ------
    UnknownNameError
        If ``arrivals`` or ``lengths`` is a name that does not exist.
    BadValueError
        If a parameter is out of range, or no request arrives within ``duration_s``.
    """
    _check(0 < rate_per_s < math.inf, "rate_per_s", rate_per_s, "a number above 0")
    _check_extent(n_requests, duration_s)
    arrival_process = _named("arrival process", arrivals, _ARRIVALS)
    length_source = _lengths(lengths)

    arrival_s = arrival_process.draw(rate_per_s, stream(seed, "arrivals"), n=n_requests, duration_s=duration_s)
    if arrival_s.size == 0:
        raise BadValueError(
            "No request arrives in this time.",
            given=f"{duration_s} s at {rate_per_s} requests/s, seed {seed}",
            hint="a longer duration_s or a higher rate_per_s",
        )
    prompt_tokens, output_tokens = length_source.draw(arrival_s.size, stream(seed, "lengths"))
    blocks: dict[str, Any] = {}
    if shared_prefix is not None:
        ids, offsets = shared_prefix.draw(prompt_tokens, stream(seed, "prefixes"))
        blocks = {"block_ids": ids, "block_offsets": offsets, "block_tokens": shared_prefix.block_tokens}
    return RequestTrace(
        arrival_s=arrival_s, prompt_tokens=prompt_tokens, output_tokens=output_tokens, name="generated", **blocks
    )


def fit_lengths(trace: RequestTrace, *, steps: int = 1000) -> QuantileLengths:
    """Take the lengths of a trace as quantiles and a rank correlation.

    Parameters
    ----------
    trace : RequestTrace
        The trace to imitate.
    steps : int
        Number of quantile steps, >= 1: 1000 resolves a tenth of a percent.
    """
    _check(steps >= 1 and steps == int(steps), "steps", steps, "a whole number of at least 1")
    levels = np.linspace(0.0, 1.0, int(steps) + 1)
    return QuantileLengths(
        prompt_quantiles=tuple(np.quantile(trace.prompt_tokens, levels).tolist()),
        output_quantiles=tuple(np.quantile(trace.output_tokens, levels).tolist()),
        rank_correlation=_rank_correlation(trace.prompt_tokens, trace.output_tokens),
    )


def _named(what: str, given: Any, known: dict[str, Any]) -> Any:
    if not isinstance(given, str):
        return given
    if given not in known:
        raise unknown_name(what, given, known)
    return known[given]


def _lengths(given: str | Lengths | tuple[str, int, int]) -> Lengths:
    if isinstance(given, tuple):
        if len(given) != 3 or given[0] != "fixed":
            raise BadValueError("Lengths as a tuple are fixed ones.", given=given, allowed='("fixed", prompt, output)')
        return FixedLengths(prompt_tokens=given[1], output_tokens=given[2])
    lengths: Lengths = _named("length distribution", given, _LENGTHS)
    return lengths


def _check_extent(n: int | None, duration_s: float | None) -> None:
    if (n is None) == (duration_s is None):
        raise BadValueError(
            "A generated trace is as long as a number of requests or a duration says.",
            given=f"number {n}, duration {duration_s} s",
            allowed="one of the two",
            where="n_requests, duration_s",
        )
    if n is not None:
        _check(n >= 1 and n == int(n), "n_requests", n, "a whole number of at least 1")
    if duration_s is not None:
        _check(0 < duration_s < math.inf, "duration_s", duration_s, "a number above 0")


def _gathered(
    batch: Callable[[float, int], tuple[FloatArray, float]], rate_per_s: float, n: int | None, duration_s: float | None
) -> FloatArray:
    """Call ``batch(now_s, size) -> (arrivals, new now_s)`` until there are ``n`` or time has passed ``duration_s``."""
    _check_extent(n, duration_s)
    end_s = math.inf if duration_s is None else duration_s
    enough = math.inf if n is None else n
    expected = min(enough, rate_per_s * end_s)
    # Four standard deviations above what a Poisson process needs: a second batch is rare.
    size = int(expected + 4 * math.sqrt(expected)) + 16
    batches: list[FloatArray] = []
    found, now_s = 0, 0.0
    while found < enough and now_s < end_s:
        times_s, now_s = batch(now_s, size)
        batches.append(times_s)
        found += times_s.size
    arrivals_s = np.concatenate(batches)
    return arrivals_s[arrivals_s < end_s][:n]


def _renewal(
    cv: float, rate_per_s: float, rng: np.random.Generator, n: int | None, duration_s: float | None
) -> FloatArray:
    shape = 1.0 / cv**2

    def gaps(now_s: float, size: int) -> tuple[FloatArray, float]:
        times_s = now_s + np.cumsum(rng.standard_gamma(shape, size)) / (shape * rate_per_s)
        return times_s, float(times_s[-1])

    return _gathered(gaps, rate_per_s, n, duration_s)


def _coupled_normals(n: int, rank_correlation: float, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    # One row per request: a longer draw begins with the shorter one.
    draws = rng.standard_normal((n, 2))
    # Spearman's correlation of a Gaussian copula is 6/pi asin(r/2).
    r = 2.0 * math.sin(math.pi * rank_correlation / 6.0)
    return draws[:, 0], r * draws[:, 0] + math.sqrt(1.0 - r * r) * draws[:, 1]


def _log_normal(normals: FloatArray, mean: float, median: float, longest: int) -> IntArray:
    sigma = math.sqrt(2.0 * math.log(mean / median))
    return np.clip(np.rint(median * np.exp(sigma * normals)), 1, longest).astype(np.int64)


def _at_quantile(levels: FloatArray, quantiles: tuple[float, ...]) -> IntArray:
    grid = np.linspace(0.0, 1.0, len(quantiles))
    return np.rint(np.interp(levels, grid, quantiles)).astype(np.int64)


def _ranks(values: npt.NDArray[Any]) -> FloatArray:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    ranks: FloatArray = (np.cumsum(count) - (count - 1) / 2)[place]
    return ranks


def _rank_correlation(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> float:
    first_ranks, second_ranks = _ranks(first), _ranks(second)
    if np.ptp(first_ranks) == 0 or np.ptp(second_ranks) == 0:
        return 0.0
    return float(np.clip(np.corrcoef(first_ranks, second_ranks)[0, 1], -1.0, 1.0))
