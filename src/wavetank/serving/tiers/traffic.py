"""Requests of several tiers whose mix drifts.

Every tier has lengths of its own: chat, completion of code, long documents.  Shares swing as sines that are a third of
a period apart, so that the work that arrives stays about the same while its mix turns; bursts multiply one tier's
arrivals for some seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from wavetank.errors import BadValueError
from wavetank.serving.tiers.interface import Floats, Ints
from wavetank.sim.rng import stream
from wavetank.workloads.generate import CODE, CONV, Lengths, LogNormalLengths, fit_lengths
from wavetank.workloads.load import read_trace

LONGEST_PROMPT = 32_000
BURST_S = 5.0
LONG = LogNormalLengths(
    prompt_mean=12035.0, prompt_median=6909.0, output_mean=342.6, output_median=342.6, prompt_max=126_195,
    output_max=2000,
)  # fmt: skip
"""Long prompts: mean and median of the conversation trace of Mooncake; answers all have its mean length."""
SOURCES: tuple[tuple[str, Lengths], ...] = (
    ("azure-conv-2023", CONV), ("azure-code-2023", CODE), ("mooncake-conversation", LONG),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class TieredRequests:
    """Requests in order of arrival.

    Attributes
    ----------
    arrival_s : ndarray of float64, shape (n,)
    tier, prompt_tokens, output_tokens : ndarray of int64, shape (n,)
    """

    arrival_s: Floats
    tier: Ints
    prompt_tokens: Ints
    output_tokens: Ints

    def __post_init__(self) -> None:
        n = self.arrival_s.size
        if n == 0 or any(each.size != n for each in (self.tier, self.prompt_tokens, self.output_tokens)):
            raise BadValueError("Requests need one tier and two lengths each.", given=n, allowed="one request or more")
        if (np.diff(self.arrival_s) < 0).any() or min(self.prompt_tokens.min(), self.output_tokens.min()) < 1:
            raise BadValueError(
                "Requests are in order of arrival and have a token of each kind or more.",
                given=f"lengths down to {min(self.prompt_tokens.min(), self.output_tokens.min())}",
            )


class Drift(NamedTuple):
    """How the mix changes.

    Attributes
    ----------
    period_s : float
        Of the swing, s.
    amplitude : float
        0 to 1: share of a tier's mean by which its arrivals swing.
    burst : float
        Factor of bursts; 1 for none.
    bursts_per_minute : float
    """

    period_s: float = 60.0
    amplitude: float = 0.5
    burst: float = 1.0
    bursts_per_minute: float = 1.0

    def factors(self, time_s: Floats, tiers: int) -> Floats:
        """Return the arrivals of each tier over their mean, without bursts, float64 of shape (tiers, times)."""
        phases = 2 * math.pi * np.arange(tiers)[:, None] / tiers
        found: Floats = 1 + self.amplitude * np.sin(2 * math.pi * time_s[None, :] / self.period_s + phases)
        return found


def drifting(
    per_s: tuple[float, ...], drift: Drift, duration_s: float, lengths: tuple[Lengths, ...], seed: int
) -> TieredRequests:
    """Return requests of all tiers.

    Parameters
    ----------
    per_s : tuple of float
        Mean arrivals of each tier, requests/s.
    drift : Drift
    duration_s : float
    lengths : tuple of Lengths
        Of each tier.
    seed : int
    """
    bursts = stream(seed, "bursts")
    n_bursts = int(bursts.poisson(drift.bursts_per_minute * duration_s / 60)) if drift.burst > 1 else 0
    begins, hit = bursts.uniform(0, duration_s, n_bursts), bursts.integers(0, len(per_s), n_bursts)
    columns: list[tuple[Floats, Ints, Ints, Ints]] = []
    for tier, (mean, kind) in enumerate(zip(per_s, lengths, strict=True)):
        draws = stream(seed, "arrivals", tier)
        most = mean * (1 + drift.amplitude) * max(drift.burst, 1.0)
        times = np.sort(draws.uniform(0, duration_s, int(draws.poisson(most * duration_s))))
        rate = mean * drift.factors(times, len(per_s))[tier]
        for begin in begins[hit == tier]:
            rate = np.where((times >= begin) & (times < begin + BURST_S), rate * drift.burst, rate)
        times = times[draws.random(times.size) * most < rate]
        prompt, output = kind.draw(times.size, stream(seed, "lengths", tier))
        columns.append((times, np.full(times.size, tier), np.minimum(prompt, LONGEST_PROMPT), output))
    arrival, tiers, prompts, outputs = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = np.argsort(arrival, kind="stable")
    return TieredRequests(
        arrival_s=arrival[order], tier=tiers[order].astype(np.int64), prompt_tokens=prompts[order].astype(np.int64),
        output_tokens=outputs[order].astype(np.int64),
    )  # fmt: skip


def lengths_of(source: str) -> tuple[Lengths, ...]:
    """Return the lengths of the three tiers.

    Parameters
    ----------
    source : str
        ``generated``, or ``traces`` for quantiles of the real ones.
    """
    return tuple(fit_lengths(read_trace(name)) if source == "traces" else made for name, made in SOURCES)


def mean_lengths(kind: Lengths) -> tuple[float, float]:
    """Return the mean prompt, cut as requests are, and the mean answer, in tokens."""
    prompt, output = kind.draw(20_000, stream(0, "mean lengths"))
    return float(np.minimum(prompt, LONGEST_PROMPT).mean()), float(output.mean())
