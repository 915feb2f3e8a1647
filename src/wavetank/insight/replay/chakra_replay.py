"""A collected step replayed: every node starts when all that it waits for has ended, collectives when all ranks came.

A recorded length says how long a step took, not why.  The graph knows which rank was waited for, so that time that is
added to one rank only counts where others wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wavetank.insight.replay.generator import generate
from wavetank.insight.replay.interface import CollectedStep
from wavetank.insight.replay.timeline import simulate
from wavetank.settings import check_ranges, setting
from wavetank.workloads.chakra import ExecutionTrace, duration_ns, on_host

_PS_PER_S = 1e12
_NS_PER_US = 1000


@dataclass(frozen=True, kw_only=True)
class ChakraReplay:
    """Replays Chakra traces, and draws others from what was fitted to them."""

    blur: float = setting(0.0, says="Share by which frequent sizes are moved in generated traces", low=0.0, high=2.0)

    def __post_init__(self) -> None:
        check_ranges(self)

    def step_s(self, step: CollectedStep, rank: int, delay_s: float) -> float:
        """Return the end of the replay.

        Parameters
        ----------
        step : CollectedStep
        rank : int
            Held up.
        delay_s : float
            From 0; whole microseconds count.
        """
        traces = list(step.traces)
        if delay_s > 0:
            traces[rank] = held_up(traces[rank], delay_s)
        return simulate(traces).makespan_ps / _PS_PER_S

    def generated(self, traces: Sequence[ExecutionTrace], seed: int) -> tuple[ExecutionTrace, ...]:
        """Return traces that communicate as the given ones do.

        Parameters
        ----------
        traces : sequence of ExecutionTrace
        seed : int
        """
        return generate(traces, seed=seed, blur=self.blur)


def held_up(trace: ExecutionTrace, delay_s: float) -> ExecutionTrace:
    """Return a trace whose host begins its first call later.

    Parameters
    ----------
    trace : ExecutionTrace
        Of :func:`~wavetank.insight.replay.convert.from_pytorch`.
    delay_s : float
    """
    first = next((node for node in trace.nodes if on_host(node) and node.name != "between"), trace.nodes[0])
    return trace.with_durations({first.id: duration_ns(first) // _NS_PER_US + round(delay_s * 1e6)})
