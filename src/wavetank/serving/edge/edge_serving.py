"""EdgeServing: serve the model whose batch leaves the least urgency behind in all queues.

A local rule, such as the longest queue first, does not see what a long batch does to the others.  For every model this
scheduler predicts how urgent all requests that are left would be when its batch ends, and takes the model with the
least sum; how deep the batch goes follows from the deadline of its oldest request.  The urgency of a request grows
exponentially with its wait, so that a sum of exponentials, scaled by one factor, gives the score of a queue.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import ClassVar

from wavetank.serving.edge.interface import Decision, ExitProfile, Queues, deepest
from wavetank.settings import setting

# No request counts for more than this.
_MOST = 10.0


class _Sums:
    """Sums of exp(-arrival / SLO) over the newest requests of a queue, from which any later score follows."""

    def __init__(self, arrived_s: list[float], now_s: float, slo_s: float) -> None:
        self.arrived_s, self.now_s, self.slo_s = arrived_s, now_s, slo_s
        self.newest = [0.0]
        for at_s in reversed(arrived_s):
            # Older than this, a request has long reached the most; its power would only cost digits.
            wait = min((now_s - at_s) / slo_s, 50.0)
            self.newest.append(self.newest[-1] + math.exp(wait - 1.0))

    def score(self, after_s: float, first: int) -> float:
        """Return the urgency of all but the ``first`` oldest requests after a time."""
        n = len(self.arrived_s)
        # Requests up to here have reached the most by then.
        clipped_s = self.now_s + after_s - self.slo_s * (1.0 + math.log(_MOST))
        clipped = max(first, bisect_right(self.arrived_s, clipped_s))
        return _MOST * (clipped - first) + self.newest[n - clipped] * math.exp(after_s / self.slo_s)


@dataclass(frozen=True, kw_only=True)
class EdgeServing:
    """Scheduler by the least urgency that a batch leaves behind."""

    drops_late: ClassVar[bool] = False

    full_batch_exit: bool = setting(
        False, says="Whether the exit is chosen as if the batch were the largest, as the released code does"
    )
    early_exits: bool = setting(True, says="Whether exits before the last may be taken")

    def choose(self, queues: Queues, profile: ExitProfile, turn: int) -> Decision:
        """Return the model with the least score, and its batch.

        Parameters
        ----------
        queues : Queues
        profile : ExitProfile
        turn : int
        """
        sums = [_Sums(list(each), queues.now_s, queues.slo_s) for each in queues.arrived_s]
        found: list[tuple[float, int, int, int]] = []
        for model, arrived_s in enumerate(queues.arrived_s):
            if not arrived_s:
                continue
            batch = min(len(arrived_s), profile.max_batch)
            exit_ = self._exit(queues, profile, model, batch)
            after_s = profile.seconds(model, exit_, batch)
            left = sum(each.score(after_s, batch if other == model else 0) for other, each in enumerate(sums))
            found.append((left, model, batch, exit_))
        _, model, batch, exit_ = min(found)
        if self.full_batch_exit:
            exit_ = self._exit(queues, profile, model, profile.max_batch)
        return Decision(model, batch, exit_)

    def _exit(self, queues: Queues, profile: ExitProfile, model: int, batch: int) -> int:
        if not self.early_exits:
            return profile.exits - 1
        return deepest(profile, model, batch, queues.now_s - queues.arrived_s[model][0], queues.slo_s)
