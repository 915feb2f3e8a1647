"""Which LoRA adapters requests ask for, and what a worker has room for, where routers are compared on them.

Generated requests ask for adapters by Zipf's law, all requests of a session for the same one; a trace has its own
column.  What adapters cost a step, and what loading one costs, are the figures of
:class:`wavetank.serving.simulator.adapters.Adapters`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.serving.routing.traffic import Traffic
from wavetank.settings import setting
from wavetank.sim.rng import stream

if TYPE_CHECKING:
    from wavetank.serving.simulator.adapters import Adapters
    from wavetank.workloads.requests import RequestTrace


@dataclass(frozen=True, kw_only=True)
class AdapterTraffic(Traffic):
    """Settings of studies whose requests may ask for adapters of the model."""

    adapters: int = setting(
        0, unit="adapters", says="LoRA adapters that generated requests ask for; 0: none. A trace has its own",
        low=0, high=100_000,
    )  # fmt: skip
    adapter_skew: float = setting(
        1.0, says="Exponent of Zipf's law by which they ask: the k-th adapter is asked for in proportion to k ** -skew",
        low=0.0, high=10.0,
    )  # fmt: skip
    adapter_slots: int = setting(
        8, unit="adapters", says="Most adapters in a worker's batch, and on its device; 0: they cost nothing, as if "
        "every request had a merged model", low=0, high=1_000_000,
    )  # fmt: skip

    def generated(self, seed: int, n: int, rate_per_s: float = 10.0) -> RequestTrace:
        """Return ``n`` generated requests, with the adapters that they ask for.

        Parameters
        ----------
        seed, n : int
        rate_per_s : float
            Mean rate of requests.
        """
        found = super().generated(seed, n, rate_per_s)
        if not self.adapters:
            return found
        return dataclasses.replace(
            found,
            adapter=asked_adapters(found, self.adapters, self.adapter_skew, seed),
            adapter_names=tuple(f"adapter-{number}" for number in range(self.adapters)),
        )

    def adapters_asked(self) -> int:
        """Return how many adapters the requests name.

        Raises
        ------
        BadValueError
            If adapters are wanted of a trace, which has its own or none.
        """
        if self.made:
            return self.adapters
        if self.adapters:
            raise BadValueError(
                "Only generated requests are given adapters; a trace has its own column, or none.",
                given=f"adapters={self.adapters}, trace={self.trace}", allowed="adapters=0", where="adapters",
                hint="a column named adapter, or --set columns=adapter=NAME",
            )  # fmt: skip
        trace = self.read()
        return 0 if trace.adapter is None else sum(name != "" for name in trace.adapter_names)

    def adapter_costs(self) -> Adapters | None:
        """Return what a worker has for adapters; None where requests ask for none, or they cost nothing."""
        from wavetank.serving.simulator.adapters import Adapters

        return Adapters(slots=self.adapter_slots) if self.adapter_slots and self.adapters_asked() else None

    def notes_on_adapters(self) -> tuple[str, ...]:
        """Return what was assumed of adapters."""
        costs, asked = self.adapter_costs(), self.adapters_asked()
        if not asked:
            return ()
        if costs is None:
            return (f"Requests name {asked:,} adapters, which cost nothing here (adapter_slots=0).",)
        return (
            f"Requests ask for {asked:,} LoRA adapters, of which a worker runs {costs.slots} at a time; a step with "
            f"one takes {costs.factor(1):.2f} times as long and {costs.percent_per_adapter:.2f} % of the plain time "
            "more for each further one, as measured for Llama-3.1-8B on an H100 (arXiv 2602.24044). "
            "Change with --set adapters=, adapter_skew=, adapter_slots=.",
        )


def asked_adapters(requests: RequestTrace, adapters: int, skew: float, seed: int) -> NDArray[np.int64]:
    """Return the adapter of each request, drawn by Zipf's law; requests of a session ask for the same one.

    Parameters
    ----------
    requests : RequestTrace
    adapters : int
        At least 1.
    skew : float
        0 asks evenly for all.
    seed : int

    Returns
    -------
    ndarray of int64, shape (n,)
        Numbers from 0, the most popular one.
    """
    popularity = np.cumsum(np.arange(1, adapters + 1, dtype=np.float64) ** -skew)
    draws = stream(seed, "adapters")
    own = np.arange(len(requests))
    who = own if requests.session is None else np.where(requests.session < 0, -1 - own, requests.session)
    _, who = np.unique(who, return_inverse=True)
    chosen = np.searchsorted(popularity, draws.random(int(who.max()) + 1) * popularity[-1], side="right")
    asked: NDArray[np.int64] = np.minimum(chosen, adapters - 1).astype(np.int64)[who]
    return asked
