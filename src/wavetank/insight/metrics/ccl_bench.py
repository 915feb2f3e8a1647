"""CCL-Bench's toolkit: traces are kept, and metrics are functions of a workload card and traces, applied afterwards.

A step time alone does not say why a run is slow.  With the trace kept, a new metric is one more function: it needs no
new run, and a claim can be checked by all who have the trace.
"""

from __future__ import annotations

from dataclasses import dataclass

from wavetank.insight.metrics.rows import row_figures
from wavetank.live.processes import python_module


@dataclass(frozen=True, kw_only=True)
class CclBench:
    """The metrics of :mod:`~wavetank.insight.metrics.definitions`, in a process of their own."""

    def command(self, outside: str) -> list[str]:
        """Return the command line of a process that measures.

        Parameters
        ----------
        outside : str
            Not used.
        """
        return python_module("wavetank.insight.metrics.analyser_process", "toolkit")

    def rows(self) -> dict[str, float]:
        """Return what the public rows say of the source's claims.

        Raises
        ------
        DataUnavailableError
            If the data set is not on this machine.
        """
        return row_figures()
