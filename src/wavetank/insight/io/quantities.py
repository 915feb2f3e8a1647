"""Quantities of a log by name: what every figure of a diagnosis is, and how it is read again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wavetank.diagnosis.findings import Value
from wavetank.errors import BadValueError
from wavetank.insight.io.labels import CODES
from wavetank.insight.io.measures import MOVED, SMALL, WORD, Family, IoFacts, TooLittleError
from wavetank.workloads.darshan import DarshanLog, read_darshan

Quantity = Callable[..., Value]


def _ratio(above: float, below: float, what: str) -> float:
    if not below > 0:
        raise TooLittleError(f"There are no {what}.")
    return above / below


def _module(facts: IoFacts, module: str) -> None:
    if module not in facts.sound:
        raise TooLittleError(f"The log has no data of module {module}.")


def _op(op: str) -> str:
    if op not in WORD:
        raise BadValueError("This is no kind of request.", given=op, allowed=list(WORD))
    return WORD[op]


def _requests(facts: IoFacts, module: str, op: str) -> float:
    _module(facts, module)
    word = _op(op)
    if module != "MPI-IO":
        return facts.total(module, f"{word}S")
    return sum(facts.total(module, f"{way}_{word}S") for way in ("COLL", "INDEP", "NB", "SPLIT"))


def _bytes(facts: IoFacts, module: str, op: str) -> float:
    _module(facts, module)
    _op(op)
    return facts.total(module, MOVED[op])


def _damaged(facts: IoFacts) -> int:
    unsound = sum(int((~each).sum()) for each in facts.sound.values())
    return unsound + sum(each.left_out for each in facts.log.modules.values())


def _sizes(facts: IoFacts, module: str, op: str, classes: Sequence[str]) -> float:
    _module(facts, module)
    if module == "STDIO":
        raise TooLittleError("Module STDIO does not count sizes.")
    middle = "" if module == "POSIX" else "AGG_"
    return sum(facts.total(module, f"SIZE_{_op(op)}_{middle}{each}") for each in classes)


def _of_posix(facts: IoFacts, counter: str, op: str) -> float:
    return facts.total("POSIX", f"{counter}_{_op(op)}S")


def _top(facts: IoFacts, code: str) -> tuple[str, float]:
    if code not in facts.saved:
        raise BadValueError("There is no such issue.", given=code, allowed=CODES)
    if not facts.saved[code]:
        raise TooLittleError("No file would save anything.")
    return max(facts.saved[code].items(), key=lambda each: each[1])


def _top_family(facts: IoFacts, code: str) -> Family:
    name, _ = _top(facts, code)
    return next(each for each in facts.families if f"{each.module}:{each.name}" == name)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _longest(facts: IoFacts) -> Family:
    if not facts.families:
        raise TooLittleError("No file took any time.")
    return facts.families[0]


def _families_time(facts: IoFacts) -> float:
    if not facts.families:
        raise TooLittleError("No request and no open took any time.")
    return facts.io_time_s


def _uneven_clock(facts: IoFacts) -> Family:
    """The family whose ranks take most unequal times, weighed by what it takes of the whole."""
    _families_time(facts)
    return max(facts.families, key=lambda each: each.time_s * each.uneven_time)


QUANTITIES: dict[str, tuple[Quantity, str]] = {
    "processes": (lambda f: f.log.processes, "processes of the job's record"),
    "run_time_s": (lambda f: f.log.run_time_s, "end less start of the job's record"),
    "modules": (lambda f: _listed(sorted(f.log.modules)), "modules with records"),
    "incomplete": (lambda f: _listed(f.log.incomplete), "modules whose flag says that files are missing"),
    "passed_over": (lambda f: _listed(sorted(f.log.passed_over)), "modules that are not read"),
    "files": (lambda f: len(f.log.names), "names in the log"),
    "left_out": (
        _damaged,
        "records with counters that no program can have made",
    ),
    "io_time_s": (_families_time, "time of the slowest rank with files of one family, summed over families"),
    "io_share": (
        lambda f: min(1.0, _ratio(_families_time(f), f.log.run_time_s, "seconds in the run")),
        "I/O time over run time, at most 1",
    ),
    "requests": (_requests, "sum of the counters of requests of the module"),
    "bytes": (
        _bytes,
        "sum of the counters of bytes of the module",
    ),
    "small_share": (
        lambda f, module, op: _ratio(_sizes(f, module, op, SMALL), _requests(f, module, op), f"{op} requests"),
        "requests of at most 1 MiB, by the classes of sizes",
    ),
    "tiny_share": (
        lambda f, module, op: _ratio(_sizes(f, module, op, SMALL[:1]), _requests(f, module, op), f"{op} requests"),
        "requests of at most 100 bytes, by the classes of sizes",
    ),
    "mean_bytes": (
        lambda f, module, op: _ratio(f.total(module, MOVED[op]), _requests(f, module, op), f"{op} requests"),
        "bytes over requests of the module",
    ),
    "consecutive_share": (
        lambda f, op: _ratio(_of_posix(f, "CONSEC", op), _requests(f, "POSIX", op), f"{op} requests"),
        "requests that begin where the last one ended, POSIX",
    ),
    "random_share": (
        lambda f, op: max(0.0, 1 - _ratio(_of_posix(f, "SEQ", op), _requests(f, "POSIX", op), f"{op} requests")),
        "requests that do not begin behind the last one, POSIX",
    ),
    "misaligned_share": (
        lambda f: _ratio(
            f.total("POSIX", "FILE_NOT_ALIGNED"),
            f.total("POSIX", "READS") + f.total("POSIX", "WRITES"), "requests of POSIX",
        ),
        "requests that do not begin at a multiple of the file's alignment, POSIX",
    ),
    "independent_share": (
        lambda f, op: _ratio(
            _requests(f, "MPI-IO", op) - f.total("MPI-IO", f"COLL_{_op(op)}S") - f.total("MPI-IO", f"SPLIT_{_op(op)}S"),
            _requests(f, "MPI-IO", op), f"{op} calls of MPI-IO",
        ),
        "calls of MPI-IO that are not collective",
    ),
    "stdio_bytes_share": (
        lambda f, op: _ratio(
            f.total("STDIO", MOVED[op]), f.total("STDIO", MOVED[op]) + f.total("POSIX", MOVED[op]), f"bytes of {op}s"
        ),
        "bytes of STDIO in those of STDIO and POSIX",
    ),
    "metadata_s": (
        lambda f: sum(f.total(each, "F_META_TIME") for each in ("POSIX", "STDIO")) / f.log.processes,
        "time of opens, stats and the like, POSIX and STDIO, over processes",
    ),
    "opens": (lambda f: f.total("POSIX", "OPENS") + f.total("STDIO", "OPENS"), "opens of POSIX and STDIO"),
    "repeat": (
        lambda f, code: _top_family(f, code).repeat, "bytes read over bytes up to the highest offset, of these files"
    ),
    "servers": (
        lambda f, code: _top_family(f, code).width, "stripes of these files, each file weighed by its time"
    ),
    "unequal_bytes_share": (
        lambda f, code: _top_family(f, code).uneven, "1 - mean / largest number of bytes of a rank, these files"
    ),
    "family": (lambda f, code: _top(f, code)[0], "module and names, # for digits, of the files that would save most"),
    "family_saves_share": (lambda f, code: _top(f, code)[1], "share of the I/O time that these files would save"),
    "saves_share": (
        lambda f, code: f.scores()[code] if code in f.saved else _top(f, code)[1],
        "estimate from counters of the share of the I/O time that would be saved",
    ),
    "unequal_files": (lambda f: _uneven_clock(f).name, "files whose ranks take most unequal times"),
    "unequal_time_share": (
        lambda f: _uneven_clock(f).uneven_time, "1 - mean / largest time of a rank, these files"
    ),
    "equal_bytes_share": (lambda f: 1 - _uneven_clock(f).uneven, "mean / largest bytes of a rank, these files"),
    "explained_share": (
        lambda f: min(1.0, _ratio(_uneven_clock(f).uneven, _uneven_clock(f).uneven_time, "unequal times")),
        "how far unequal bytes explain unequal times",
    ),
    "longest_files": (lambda f: _longest(f).name, "names, with # for digits, of the files that take longest"),
    "longest_share": (lambda f: _ratio(_longest(f).time_s, f.io_time_s, "seconds"), "of the I/O time"),
}  # fmt: skip
"""Quantities by name: a function of the facts of a log and of arguments, and how it is read."""


class DarshanSource:
    """One log, or the logs of a folder, as a source of quantities.

    Parameters
    ----------
    path : Path
    logs : mapping of str to DarshanLog, optional
        Logs by name, in place of files.

    Raises
    ------
    BadTraceError
        If a file cannot be read.
    """

    def __init__(self, path: Path, logs: Mapping[str, DarshanLog] | None = None) -> None:
        if logs is None:
            files = sorted(path.glob("*.darshan")) if path.is_dir() else [path]
            if not files:
                raise TooLittleError("The folder has no logs.", given=str(path))
            logs = {each.name: read_darshan(each) for each in files}
        self.facts = {name: IoFacts(log) for name, log in logs.items()}

    @classmethod
    def of(cls, log: DarshanLog) -> DarshanSource:
        """Return one log as a source.

        Parameters
        ----------
        log : DarshanLog
        """
        return cls(Path(), {"log": log})

    def quantity(self, name: str, *, log: str = "", **of: Any) -> Value:
        """See :class:`wavetank.diagnosis.findings.Source`.

        Parameters
        ----------
        name : str
        log : str
            Name of the log; may be left out where there is one.
        **of : value
        """
        if name not in QUANTITIES:
            raise BadValueError("There is no such quantity.", given=name, allowed=list(QUANTITIES))
        if not log and len(self.facts) == 1:
            (facts,) = self.facts.values()
        elif log in self.facts:
            facts = self.facts[log]
        else:
            raise BadValueError("There is no such log.", given=log, allowed=list(self.facts))
        value = QUANTITIES[name][0](facts, **of)
        if isinstance(value, float) and not np.isfinite(value):
            raise TooLittleError(f"{name} is no number.")
        return value

    def how(self, name: str) -> str:
        """See :class:`wavetank.diagnosis.findings.Source`."""
        return QUANTITIES[name][1]
