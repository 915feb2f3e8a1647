"""A log in fragments, one for each side of each module: its facts, and what they say by themselves.

A fragment is small enough for one question to a language model.  Without one, rules judge it: an issue is shown where
removing its requests would save at least a given share of the I/O time, by the estimate of ``measures``.
"""

from __future__ import annotations

from dataclasses import dataclass

from wavetank.diagnosis.findings import Evidence, read
from wavetank.errors import WavetankError
from wavetank.insight.io.labels import KINDS, kind
from wavetank.insight.io.merge import Issue, Summary
from wavetank.insight.io.quantities import DarshanSource
from wavetank.insight.io.retrieval import retrieve

_OPS = {"R": "read", "W": "write"}


@dataclass(frozen=True, kw_only=True)
class Fragment:
    """A side of a module.

    Parameters
    ----------
    module : str
    about : str
        What it is about, in words.
    codes : tuple of str
        Issues that it can show.
    facts : tuple of Evidence
    """

    module: str
    about: str
    codes: tuple[str, ...]
    facts: tuple[Evidence, ...]

    @property
    def text(self) -> str:
        """Its facts, one a line, as a language model reads them."""
        return "\n".join(f"- {{{each.key}}}: {each.shown}, {each.how}" for each in self.facts)


# By fragment: module, about, codes, and quantities as (name, unit, arguments).
_Wanted = tuple[str, str, dict[str, str]]
_PARTS: tuple[tuple[str, str, tuple[str, ...], tuple[_Wanted, ...]], ...] = (
    *(
        (
            "POSIX", f"{op} requests", (f"SML-{mark}", f"RMA-{mark}", f"MSL-{mark}"),
            (
                ("requests", "", {"module": "POSIX", "op": op}), ("bytes", "B", {"module": "POSIX", "op": op}),
                ("small_share", "", {"module": "POSIX", "op": op}), ("consecutive_share", "", {"op": op}),
                ("random_share", "", {"op": op}), ("misaligned_share", "", {}),
                ("mean_bytes", "B", {"module": "POSIX", "op": op}),
            ),
        )
        for mark, op in _OPS.items()
    ),
    ("POSIX", "files and ranks", ("RDA-R", "RLIM", "SHF", "MPNM"),
     (("processes", "", {}), ("longest_files", "", {}), ("longest_share", "", {}))),
    *(
        (
            "MPI-IO", f"{op} calls", (f"NC-{mark}", f"SML-{mark}"),
            (
                ("requests", "", {"module": "MPI-IO", "op": op}), ("independent_share", "", {"op": op}),
                ("small_share", "", {"module": "MPI-IO", "op": op}),
            ),
        )
        for mark, op in _OPS.items()
    ),
    *(
        (
            "STDIO", f"{op} requests", (f"LLL-{mark}",),
            (
                ("requests", "", {"module": "STDIO", "op": op}), ("bytes", "B", {"module": "STDIO", "op": op}),
                ("stdio_bytes_share", "", {"op": op}),
            ),
        )
        for mark, op in _OPS.items()
    ),
    ("LUSTRE", "stripes", ("SLIM",), ()),
    ("metadata", "opens and stats", ("HMD",), (("opens", "", {}), ("metadata_s", "s", {}))),
)  # fmt: skip

_SAYS = {
    "SML-R": "{small_share} of {requests} reads move at most a mebibyte; {consecutive_share} follow the one before.",
    "SML-W": "{small_share} of {requests} writes move at most a mebibyte; {consecutive_share} follow the one before.",
    "MSL-R": "{misaligned_share} of the requests do not begin where a block does; a read then touches one more.",
    "MSL-W": "{misaligned_share} of the requests do not begin where a block does; a write then has to read it first.",
    "RMA-R": "{random_share} of {requests} reads do not begin behind the one before.",
    "RMA-W": "{random_share} of {requests} writes do not begin behind the one before.",
    "RDA-R": "Files are read {repeat} times over, by bytes read over the highest offset.",
    "NC-R": "{independent_share} of {requests} read calls of MPI-IO are independent, on a file that ranks share.",
    "NC-W": "{independent_share} of {requests} write calls of MPI-IO are independent, on a file that ranks share.",
    "LLL-R": "{stdio_bytes_share} of the bytes that are read come through STDIO, in {requests} calls.",
    "LLL-W": "{stdio_bytes_share} of the bytes that are written go through STDIO, in {requests} calls.",
    "HMD": "{opens} opens, stats and the like take {metadata_s} of each process.",
    "SLIM": "The files that matter lie on {servers} server, weighed by the time that they take.",
    "RLIM": "Bytes are unequal: {unequal_bytes_share} of what the fullest rank moves is more than the mean of all.",
    "MPNM": "{processes} processes make such requests to shared files through POSIX alone.",
    "SHF": "{processes} processes write parts of the same blocks of a shared file.",
}  # fmt: skip
_TAIL = " By a rule of thumb this would save {saves_share} of the I/O time, {family_saves_share} with {family}."
# Four servers in place of one saved 4 to 7 % in a measured case where clients were what a job waited for.
_AT_MOST = (
    " This would save up to {saves_share} of the I/O time, {family_saves_share} with {family}, where servers are what "
    "it waits for; the log does not say whether they are."
)
_ADVICE = {
    "SML": "Gather requests into larger ones, or leave that to a library that can (MPI-IO, HDF, ADIOS).",
    "MSL": "Align the first byte of each block: alignment in HDF, whole stripes for each rank.",
    "RMA": "Sort requests by offset, or read larger pieces and pick in memory.",
    "RDA": "Keep what was read in memory or on a local disk, or let one rank read and broadcast.",
    "NC": "Use the collective calls, or ask the library for collective transfers.",
    "LLL": "Write bulk data through POSIX, MPI-IO or a library of array formats.",
    "HMD": "Open files once and keep them open; pack small files; let one rank ask for attributes.",
    "SLIM": "Set a wider stripe on the directory before the file is created.",
    "RLIM": "Let all ranks, or more aggregators, share the bytes.",
    "MPNM": "Describe who owns which bytes to MPI-IO and let it join the requests.",
    "SHF": "Give each rank whole stripes, use collective writes, or a file for each group of ranks.",
}
_OWN = {"RDA-R": ("repeat",), "SLIM": ("servers",), "RLIM": ("unequal_bytes_share",)}
_UNITS = {"repeat": "", "servers": "", "unequal_bytes_share": ""}


def fragments(source: DarshanSource, log: str = "") -> tuple[Fragment, ...]:
    """Return the fragments of a log that have something to show.

    Parameters
    ----------
    source : DarshanSource
    log : str
        Its name, where the source has several.
    """
    of_log = {"log": log} if log else {}
    found = []
    for module, about, codes, wanted in _PARTS:
        facts = []
        for name, unit, of in wanted:
            try:
                facts.append(read(source, name, unit, **of, **of_log))
            except WavetankError:
                # The log has nothing of this; other facts may still say something.
                continue
        asked = any(name == "requests" for name, _, _ in wanted)
        if asked and not any(each.name == "requests" and each.value for each in facts):
            continue
        if facts or not wanted:
            found.append(Fragment(module=module, about=about, codes=codes, facts=tuple(facts)))
    return tuple(found)


def judged(source: DarshanSource, fragment: Fragment, least: dict[str, float], log: str, passages: int) -> Summary:
    """Return what the rules find in a fragment.

    Parameters
    ----------
    source : DarshanSource
    fragment : Fragment
    least : dict of str to float
        By kind, the share of the I/O time from which an issue is shown.
    log : str
    passages : int
        Of the knowledge base, for each issue; 0 retrieves none.
    """
    issues = []
    for code in fragment.codes:
        issue = one_issue(source, fragment, code, log, passages)
        if issue is None:
            continue
        saves = next(each.value for each in issue.evidence if each.name == "saves_share")
        if not float(saves) >= least[kind(code)]:
            continue
        if fragment.module == "MPI-IO" and code.startswith("SML"):
            small = next((float(each.value) for each in fragment.facts if each.name == "small_share"), 1.0)
            # The calls are large: a layer below made them small.
            issues.append(
                Issue(code=code, shown_by=("MPI-IO",)) if small > 0.5 else Issue(code=code, not_shown_by=("MPI-IO",))
            )
            continue
        issues.append(issue)
    return tuple(sorted(issues, key=lambda each: each.code))


def one_issue(source: DarshanSource, fragment: Fragment, code: str, log: str, passages: int) -> Issue | None:
    """Return an issue with all its evidence; None where the log does not have its figures.

    Parameters
    ----------
    source : DarshanSource
    fragment : Fragment
    code : str
    log : str
    passages : int
    """
    of = {"code": code, **({"log": log} if log else {})}
    try:
        own = [read(source, name, _UNITS[name], **of) for name in _OWN.get(code, ())]
        saves = [read(source, name, **of) for name in ("saves_share", "family_saves_share", "family")]
    except WavetankError:
        return None
    facts = {each.key: each for each in (*fragment.facts, *own, *saves)}
    says = _SAYS[code] + (_AT_MOST if code == "SLIM" else _TAIL)
    used = tuple(each for key, each in facts.items() if f"{{{key}}}" in says)
    if fragment.module != "MPI-IO" and any(
        f"{{{name}}}" in says and name not in facts
        for name in ("small_share", "requests", "consecutive_share", "random_share", "misaligned_share", "metadata_s")
    ):
        return None
    query = f"{KINDS[kind(code)]} {fragment.about} {says}"
    return Issue(
        code=code, shown_by=(fragment.module,), evidence=used, says=says, advice=_ADVICE[kind(code)],
        citations=tuple(each.cited for each in retrieve(query, kind(code), passages)) if passages else (),
    )  # fmt: skip
