"""What a replay of collected traces promises.  One definition, used by the study and by all that it compares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from wavetank.workloads.chakra import ExecutionTrace


class CollectedStep(NamedTuple):
    """A step that was recorded on all its ranks.

    Parameters
    ----------
    traces : sequence of ExecutionTrace
        Of ranks 0, 1, ..., from the step's begin on.
    took_s : float
        From the first rank's begin to the last one's end.
    """

    traces: Sequence[ExecutionTrace]
    took_s: float


class Replay(Protocol):
    """Says how long a recorded step would take if one of its ranks were held up.

    ``step_s(step, rank, delay_s) -> seconds``; with a delay of 0, how long it took.
    """

    def step_s(self, step: CollectedStep, rank: int, delay_s: float) -> float:
        """Return the length of the step, s, with ``rank`` held up by ``delay_s`` at its beginning."""
        ...
