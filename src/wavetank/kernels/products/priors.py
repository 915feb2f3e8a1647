"""What is known of products on a family of processors before anything was measured on the one at hand.

Priors are few and careful: where nothing is known, the caller's own library multiplies.  They are package data, read
once per process from ``priors.toml``; ``wavetank profile`` measures what they leave open.
"""

from __future__ import annotations

import functools
import platform
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

FORMAT = 1


@dataclass(frozen=True)
class Priors:
    """What is known of one family of processors."""

    family: str
    """Its name in the file."""
    name: str
    """Its name for people."""
    basis: str
    """Where the rules come from."""
    libraries: tuple[str, ...] = ()
    """The order in which libraries are preferred; empty for the caller's own."""
    most_threads: int = 0
    """Above this many threads no scheme is known to pay."""
    schemes: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    """Type to (levels of Strassen's scheme, least side), fewest levels first."""

    def library(self, caller: str, loaded: Sequence[str]) -> str:
        """Return whose product to take: the first of the family's that is loaded, else the caller's own.

        Parameters
        ----------
        caller : str
            The library that the operands belong to.
        loaded : sequence of str
        """
        return next((name for name in self.libraries if name in loaded), caller)

    def levels(self, m: int, k: int, n: int, dtype: str, threads: int) -> int:
        """Return how many levels of Strassen's scheme are known to be at least 5 % faster than every library."""
        if threads > self.most_threads:
            return 0
        fitting = [levels for levels, side in self.schemes.get(dtype, ()) if min(m, k, n) >= side]
        return max(fitting, default=0)


def read() -> dict[str, Priors]:
    """Return the priors of all families, as shipped."""
    found = tomllib.loads((Path(__file__).parent / "priors.toml").read_text(encoding="utf-8"))
    if found.pop("format") != FORMAT:
        raise ValueError("priors.toml is of another format than this code")
    return {
        family: Priors(
            family, given["name"], given["basis"], tuple(given.get("libraries", ())), int(given.get("most_threads", 0)),
            {kind: tuple((int(levels), int(side)) for levels, side in rules)
             for kind, rules in given.get("schemes", {}).items()},
        )
        for family, given in found.items()
    }  # fmt: skip


def family_of(machine: str, facts: str) -> str:
    """Return the family of a processor.

    Parameters
    ----------
    machine : str
        As ``platform.machine()`` gives it.
    facts : str
        The text of ``/proc/cpuinfo``; empty where there is none.

    Examples
    --------
    >>> family_of("x86_64", "vendor_id : AuthenticAMD\\nflags : fma avx2 avx512f avx512vl\\n")
    'zen-avx512'
    """
    if machine.lower() in ("aarch64", "arm64"):
        return "arm"
    words: dict[str, str] = {}
    for line in facts.splitlines():
        key, _, value = line.partition(":")
        words.setdefault(key.strip(), value.strip())
    flags = set(words.get("flags", "").split())
    vendor = words.get("vendor_id", "")
    if machine.lower() not in ("x86_64", "amd64") or not {"avx2", "fma"} <= flags:
        return "other"
    if "avx512f" in flags:
        return {"AuthenticAMD": "zen-avx512", "GenuineIntel": "intel-avx512"}.get(vendor, "x86-avx2")
    return "x86-avx2"


@functools.cache
def here() -> Priors:
    """Return the priors of the processor at hand."""
    try:
        # The first core's facts: the system takes long to list those of all.
        with Path("/proc/cpuinfo").open("rb") as file:
            facts = file.read(1 << 13).decode(errors="replace").partition("\n\n")[0]
    except OSError:
        facts = ""
    return read()[family_of(platform.machine(), facts)]
