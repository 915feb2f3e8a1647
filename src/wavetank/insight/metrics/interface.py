"""What an analyser of traces promises, so that others can be asked in the same way as ours."""

from __future__ import annotations

from typing import NamedTuple, Protocol

SHARED = ("compute_comm_overlap", "idle_fraction", "compute_fraction")
"""The metrics that all analysers have, by the names of ours."""


class Answer(NamedTuple):
    """What an analyser says of one trace.

    Parameters
    ----------
    shares : dict of str to float
        Of :data:`SHARED`, those that it can say.
    cpu_s : list of float
        Processor time of each time it read and measured the trace, s.
    peak_bytes : int
        By how much its process grew while it did.
    """

    shares: dict[str, float]
    cpu_s: list[float]
    peak_bytes: int


class TraceAnalyser(Protocol):
    """Reads traces and measures shares, in a process of its own.

    Analysers of others need other libraries, and processor time and memory are those of a process: so all are asked in
    one.  It gets ``{"files": [...], "warm": file or null, "repeats": n}`` as JSON and prints the answers, one a file.
    """

    def command(self, outside: str) -> list[str]:
        """Return the command line; empty where the analyser is not here.

        Parameters
        ----------
        outside : str
            Python of the environment of others; empty where there is none.
        """
        ...
