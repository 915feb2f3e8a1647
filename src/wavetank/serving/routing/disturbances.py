"""Workers that restart, fail, or come and go with the load while routers are compared."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wavetank.settings import setting
from wavetank.units import show, stated

if TYPE_CHECKING:
    from wavetank.serving.simulator.changes import Churn


@dataclass(frozen=True, kw_only=True)
class Disturbances:
    """Settings of studies whose workers do not run all the time."""

    churn: str = setting(
        "none",
        says="What happens to the workers: rolling-restart: some drain, stop and start again after the others, without "
        "end; failures: each at random; autoscale: some are started or drained by the requests in flight",
        choices=("none", "rolling-restart", "failures", "autoscale"),
    )
    gone_share: float = setting(
        0.125, says="Share of the workers that restart together, or that have failed on average", low=0.001, high=0.5
    )
    gone_s: float = setting(
        60.0, unit="s", says="Time until a worker that stopped or failed (on average) takes requests again",
        low=0.001, high=1e5,
    )  # fmt: skip
    drain_s: float = setting(
        30.0, unit="s", says="Time that a restart gives a worker to finish what it has", low=0.0, high=1e5
    )
    scale_high: float = setting(
        48.0, unit="requests", says="Requests in flight per worker above which autoscale starts workers; below a third "
        "of it one is drained", low=1.0, high=1e6,
    )  # fmt: skip
    streams: str = setting(
        "lost", says="What becomes of an answer that had begun on a worker that is gone",
        choices=("lost", "recomputed"),
    )  # fmt: skip
    wait_s: float = setting(
        0.0, unit="s", says="Time that a request waits while no worker is seen to take it", low=0.0, high=1e5
    )

    def churn_over(self, workers: int, span_s: float, seed: int) -> Churn | None:
        """Return what happens to workers during a trace; None where nothing does.

        Parameters
        ----------
        workers : int
        span_s : float
            Of the trace.
        seed : int
            Of the failures: the same for every router.
        """
        from wavetank.serving.simulator.changes import Churn

        plain = Churn(streams=self.streams, wait_s=self.wait_s, seed=seed, drain_s=self.drain_s, start_s=self.gone_s)
        given = {name: getattr(plain, name) for name in ("streams", "wait_s", "seed", "drain_s", "start_s")}
        if self.churn == "none":
            return None
        if self.churn == "failures":
            to_failure_s = self.gone_s * (1 - self.gone_share) / self.gone_share
            return Churn(time_to_failure_s=to_failure_s, repair_s=self.gone_s, **given)
        if self.churn == "autoscale":
            return Churn(scale_high=self.scale_high, scale_low=self.scale_high / 3, **given)
        at_once = max(round(self.gone_share * workers), 1)
        once_s = math.ceil(workers / at_once) * (self.drain_s + self.gone_s)
        begins_s = tuple(number * once_s for number in range(math.ceil(span_s / once_s)))
        return Churn(restarts_s=begins_s, restart_at_once=at_once, **given)

    def notes_on_churn(self) -> tuple[str, ...]:
        """Return what was assumed of the workers' changes."""
        if self.churn == "none":
            return ()
        happens = {
            "rolling-restart": f"{stated(self.gone_share)} of the workers at a time drain for up to "
            f"{show(self.drain_s, 's')}, stop and take requests again {show(self.gone_s, 's')} later, one batch after "
            "the other without end",
            "failures": f"every worker fails at random and is gone for {show(self.gone_s, 's')} on average, "
            f"{stated(self.gone_share)} of its time",
            "autoscale": f"an autoscaler looks every 15 s, starts workers (in {show(self.gone_s, 's')}) above "
            f"{self.scale_high:g} requests in flight per worker and drains one below {self.scale_high / 3:.3g}",
        }[self.churn]
        return (
            f"Workers change: {happens}. Requests without a token are sent again once, streams that had begun are "
            f"{self.streams}. Latencies and throughput are of the requests that finished; capacity and the saturation "
            "rate are of workers that run all the time.",
        )
