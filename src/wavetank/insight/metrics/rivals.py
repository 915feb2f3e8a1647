"""Other analysers of traces: HolisticTraceAnalysis, sums of durations, and the standard library alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from wavetank.insight.metrics import hta_process
from wavetank.live.processes import python_module


@dataclass(frozen=True, kw_only=True)
class HolisticTraceAnalysis:
    """Meta's library, with pandas, in an environment of its own."""

    def command(self, outside: str) -> list[str]:
        """Return the command line of a process that measures; empty where the environment is not here.

        Parameters
        ----------
        outside : str
            Its Python.
        """
        return [outside, "-P", str(Path(hta_process.__file__))] if outside else []


@dataclass(frozen=True, kw_only=True)
class SummedDurations:
    """Sums of durations by kind, as summary tables of profilers have them."""

    def command(self, outside: str) -> list[str]:
        """Return the command line of a process that measures.

        Parameters
        ----------
        outside : str
            Not used.
        """
        return python_module("wavetank.insight.metrics.analyser_process", "summed")


@dataclass(frozen=True, kw_only=True)
class PlainJson:
    """The standard library's json, and lists of intervals."""

    def command(self, outside: str) -> list[str]:
        """Return the command line of a process that measures.

        Parameters
        ----------
        outside : str
            Not used.
        """
        return python_module("wavetank.insight.metrics.analyser_process", "plainly")
