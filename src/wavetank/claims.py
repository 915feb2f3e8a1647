"""The claims ledger: what the sources say, held against records.

Verdicts
--------
holds               the direction is right beyond the interval and the source's figure (or the bar) is reached
holds in part       the direction is right beyond the interval, but the effect is smaller than the source's
does not hold here  the interval lies on the wrong side
undecided           the interval does not tell
not run             no evidence under the claim's settings
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from wavetank import catalog
from wavetank.catalog import Claim
from wavetank.errors import BadFileError
from wavetank.records import Record, canonical_at, json_number, read_parquet
from wavetank.summary import interval, paired_ratio

HOLDS, IN_PART, FAILS, UNDECIDED, NOT_RUN = "holds", "holds in part", "does not hold here", "undecided", "not run"
VERDICTS = (HOLDS, IN_PART, FAILS, UNDECIDED, NOT_RUN)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A claim with our figure and its verdict.

    Attributes
    ----------
    claim : Claim
    measured, low, high : float
        Median and interval: a ratio when the claim compares, else the metric's own value.
    verdict : str
        One of :data:`VERDICTS`.
    evidence : str
        Folder of the records behind it, empty when not run.
    """

    claim: Claim
    measured: float
    low: float
    high: float
    verdict: str
    evidence: str = ""

    def as_row(self) -> dict[str, Any]:
        """Return the stable shape that ``--json`` prints."""
        return {
            "system": self.claim.system,
            "says": self.claim.says,
            "study": self.claim.study,
            "metric": self.claim.metric,
            "versus": self.claim.versus,
            "paper": self.claim.paper,
            "bar": self.bar,
            "measured": json_number(self.measured),
            "low": json_number(self.low),
            "high": json_number(self.high),
            "verdict": self.verdict,
            "note": self.claim.note,
            "evidence": self.evidence,
        }

    @property
    def bar(self) -> float | None:
        """Return the figure that had to be reached, None when only the direction counts."""
        claim = self.claim
        return next((bar for bar in (claim.at_least, claim.at_most, claim.paper) if bar is not None), None)


def judge(claim: Claim, records: Sequence[Record], evidence: str = "") -> Finding:
    """Hold a claim against the records of one run."""
    if claim.versus is not None:
        median, low, high, seeds = paired_ratio(records, claim.metric, claim.system, claim.versus, claim.at)
    else:
        wanted = canonical_at(claim.at)
        values = [
            record.value
            for record in records
            if record.system == claim.system
            and record.metric == claim.metric
            and canonical_at(record.at) == wanted
            and not math.isnan(record.value)
        ]
        (median, low, high), seeds = interval(values), len(values)
    verdict = _verdict(claim, median, low, high) if seeds else NOT_RUN
    return Finding(
        claim=claim, measured=median, low=low, high=high, verdict=verdict, evidence=evidence if seeds else ""
    )


def _verdict(claim: Claim, median: float, low: float, high: float) -> str:
    if claim.at_least is not None or claim.at_most is not None:
        least = -math.inf if claim.at_least is None else claim.at_least
        most = math.inf if claim.at_most is None else claim.at_most
        if low >= least and high <= most:
            return HOLDS
        return FAILS if high < least or low > most else UNDECIDED
    # Work on the side where higher is better; the neutral point of a ratio is 1.
    if claim.better == "lower":
        low, high = -high, -low
    neutral, target = (-1.0 if claim.better == "lower" else 1.0), claim.paper
    if claim.versus is None:
        neutral = -math.inf
    if target is not None and claim.better == "lower":
        target = -target
    if low > neutral:
        return HOLDS if target is None or high >= target else IN_PART
    return FAILS if high < neutral else UNDECIDED


def findings_of_run(
    study: str,
    settings: Mapping[str, Any],
    systems: Sequence[str],
    records: Sequence[Record],
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[Finding]:
    """Return the findings of the claims that a run can decide.

    A claim is about a system as the catalog builds it: one that ran with other ``parameters`` decides nothing.
    """
    as_claimed = [name for name in systems if not (parameters or {}).get(name)]
    found = []
    for name in as_claimed:
        for claim in catalog.system(name).claims:
            if _bears_on(claim, study, settings) and (claim.versus is None or claim.versus in as_claimed):
                found.append(judge(claim, records))
    return found


def _bears_on(claim: Claim, study: str, settings: Mapping[str, Any]) -> bool:
    return claim.study == study and all(
        _plain(settings.get(key)) == _plain(value) for key, value in claim.where.items()
    )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def evidence_folder() -> Path:
    """Return the folder of committed records: inside an installed package, or at the root of a checkout."""
    inside = Path(__file__).parent / "evidence"
    return inside if inside.is_dir() else Path(__file__).parents[2] / "evidence"


def ledger(names: Iterable[str] = ()) -> list[Finding]:
    """Return every claim (of the named systems, or of all) with its verdict from the committed evidence."""
    wanted = [catalog.system(name) for name in names] or list(catalog.everything())
    runs = _evidence_runs()
    found = []
    for entry in wanted:
        for claim in entry.claims:
            findings = [
                judge(claim, run.records, run.folder)
                for run in runs
                if _bears_on(claim, run.study, run.settings) and not {claim.system, claim.versus} & run.tuned
            ]
            decided = [finding for finding in findings if finding.verdict != NOT_RUN]
            # Several runs may bear on a claim: the most telling one that was kept last speaks.
            found.append(decided[-1] if decided else judge(claim, []))
    return found


@dataclass(frozen=True)
class _EvidenceRun:
    folder: str
    study: str
    settings: dict[str, Any]
    tuned: frozenset[str]
    started: str
    file: Path

    @cached_property
    def records(self) -> list[Record]:
        return read_parquet(self.file)


def _evidence_runs() -> list[_EvidenceRun]:
    """Return the runs that were kept, the latest last; records are read when a claim asks for them."""
    root = evidence_folder()
    runs = []
    for file in root.glob("*/*/run.json"):
        try:
            about = json.loads(file.read_text(encoding="utf-8"))
            run = _EvidenceRun(
                f"evidence/{file.parent.relative_to(root).as_posix()}",
                about["study"],
                about["settings"],
                frozenset(name for name, values in about["parameters"].items() if values),
                about["started"],
                file.with_name("records.parquet"),
            )
        except (OSError, ValueError, KeyError) as error:
            raise BadFileError(f"A run of the evidence cannot be read: {error!r}", where=str(file)) from error
        runs.append(run)
    return sorted(runs, key=lambda run: (run.started, run.folder))
