"""The kinds of I/O issues, by TraceBench's abbreviations, and what each means.

Source: the eleven kinds that IOAgent's labelled suite TraceBench comes to when reads and writes are taken together
(arXiv 2602.22017).  Codes end in -R or -W where only reads or writes are meant; the expansions are our reading of them.
"""

from __future__ import annotations

KINDS = {
    "SML": "small requests",
    "MSL": "misaligned requests",
    "RMA": "random access",
    "RDA": "data read again and again",
    "NC": "MPI-IO without collective calls",
    "LLL": "data through STDIO",
    "HMD": "time in metadata",
    "SLIM": "load on few servers",
    "RLIM": "load on few ranks",
    "MPNM": "many processes without MPI-IO",
    "SHF": "ranks contend for a shared file",
}
"""What each kind of issue is."""

CODES = (
    "SML-R", "SML-W", "MSL-R", "MSL-W", "RMA-R", "RMA-W", "RDA-R", "NC-R", "NC-W", "LLL-R", "LLL-W", "HMD", "SLIM",
    "RLIM", "MPNM", "SHF",
)  # fmt: skip
"""The sixteen codes."""


def kind(code: str) -> str:
    """Return the kind of a code.

    Parameters
    ----------
    code : str
    """
    return code.partition("-")[0]
