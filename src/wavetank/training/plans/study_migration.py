"""Study ``expert-balance``: where experts should be while tokens prefer some of them, and preferences drift."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from wavetank.errors import BadValueError
from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.training.plans.migration import Balancer, View, check_places, rank_loads


@dataclass(frozen=True, kw_only=True)
class ExpertBalance(Study):
    """A layer's experts lie on ranks, as many on each; tokens choose them by Zipf's law, and which they prefer drifts.
    Every some steps a balancer sees what was counted in the last ones and may move experts, which stops all ranks while
    their states travel.  A step is as long as its busiest rank.
    """

    name: ClassVar[str] = "expert-balance"
    baseline: ClassVar[str] = "experts-stay"
    primary: ClassVar[str] = "time_of_even"
    default_seeds: ClassVar[int] = 12
    secondary: ClassVar[tuple[str, ...]] = ("moving_share", "imbalance")
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("time_of_even", "", "lower", "simulated",
               "time of all steps and of all moves / time of all steps with as many tokens on every rank",
               words="time over that of even loads"),
        Metric("moving_share", "", "lower", "simulated", "time in which experts move / time of all",
               words="share of moving"),
        Metric("imbalance", "", "lower", "simulated", "tokens of the busiest rank / mean - 1, mean over steps"),
        Metric("moved", "experts", "lower", "counted", "experts that changed places"),
        Metric("time_by_half_life", "", "lower", "simulated", "time over that of even loads by the half-life of "
               "preferences, steps", table=False, words="time over that of even loads"),
    )  # fmt: skip
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "Time over that of even loads", y="time_of_even", says="1 is perfect."),
        Chart("sweep", "By the half-life of preferences", y="time_by_half_life", by="steps", log="x",
              says="Where moving experts begins to pay."),
    )  # fmt: skip

    experts: int = setting(128, says="Experts of a layer", low=2, high=4096)
    ranks: int = setting(8, unit="ranks", says="Ranks that divide them", low=2, high=1024)
    zipf: float = setting(0.8, says="Exponent of Zipf's law by which tokens choose experts", low=0.0, high=3.0)
    half_life_steps: float = setting(
        500.0, unit="steps", says="Steps after which half of the experts have another popularity", low=1.0, high=1e9
    )
    steps: int = setting(2000, unit="steps", says="Steps of the run", low=1, high=1_000_000)
    every: int = setting(
        20, unit="steps", says="Steps between decisions, whose mean loads a balancer sees", low=1, high=10_000
    )
    tokens: int = setting(65_536, unit="tokens", says="Tokens that the layer's ranks have together, with copies", low=1,
                          high=1 << 30)  # fmt: skip
    token_us: float = setting(0.5, unit="us", says="What a token costs its rank, microseconds", low=1e-6, high=1e6)
    swap_ms: float = setting(3.0, unit="ms", says="What it takes to swap two experts, milliseconds", low=0.0, high=1e6)
    half_lives: tuple[float, ...] = setting(
        (20.0, 100.0, 1e9), unit="steps", says="Further half-lives", low=1.0, high=1e9
    )

    def check(self) -> None:
        """Refuse experts that ranks do not divide."""
        if self.experts % self.ranks:
            raise BadValueError("Every rank has as many experts.", given=f"{self.experts} on {self.ranks}",
                                allowed="a multiple", where="experts")  # fmt: skip

    def loads(self, seed: int, half_life: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        """Return the tokens of each expert in each step, shape (steps, experts).

        Parameters
        ----------
        seed : int
        half_life : float
            Steps.
        """
        draws = stream(seed, "expert balance")
        share = 1.0 / np.arange(1, self.experts + 1) ** self.zipf
        share /= share.sum()
        place = draws.permutation(self.experts)
        # Pairs exchange popularity; after a half-life half of the experts have taken part.
        rate = self.experts / 2 * np.log(2.0) / half_life
        found = np.empty((self.steps, self.experts))
        for step in range(self.steps):
            for _ in range(int(draws.poisson(rate))):
                one, other = draws.integers(self.experts, size=2)
                place[[one, other]] = place[[other, one]]
            found[step] = draws.multinomial(self.tokens, share[place])
        return found

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures."""
        return (
            "Preferences are drawn, none are recorded; moving stops all ranks, swap by swap.",
            f"A swap takes {self.swap_ms:g} ms, a step with even loads "
            f"{self.tokens / self.ranks * self.token_us / 1e3:.3g} ms.",
        )

    def measure(self, system: Balancer, seed: int) -> Measurements:
        """Run all steps."""
        found = Measurements(self._run(system, seed, self.half_life_steps))
        found.put("time_by_half_life", found.rows[0][1], steps=self.half_life_steps)
        for half_life in self.half_lives:
            found.put("time_by_half_life", self._run(system, seed, half_life)["time_of_even"], steps=half_life)
        return found

    def _run(self, system: Balancer, seed: int, half_life: float) -> dict[str, float]:
        loads, token_s, swap_s = self.loads(seed, half_life), self.token_us * 1e-6, self.swap_ms * 1e-3
        owner = np.arange(self.experts) % self.ranks
        busy_s = moving_s = 0.0
        moved, uneven = 0, []
        for step in range(self.steps):
            if step and step % self.every == 0:
                seen = loads[step - self.every : step].mean(0)
                view = View(seen, owner, self.ranks, token_s, swap_s)
                places = system.place(view)
                changed = check_places(view, places)
                moved += changed
                # A swap moves two.
                moving_s += changed / 2 * swap_s
                owner = places
            most = float(rank_loads(loads[step], owner, self.ranks).max())
            busy_s += most * token_s
            uneven.append(most * self.ranks / self.tokens - 1)
        even_s = self.steps * self.tokens / self.ranks * token_s
        return {
            "time_of_even": (busy_s + moving_s) / even_s, "moving_share": moving_s / (busy_s + moving_s),
            "imbalance": float(np.mean(uneven)), "moved": moved,
        }  # fmt: skip
