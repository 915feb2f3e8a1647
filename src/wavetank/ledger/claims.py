"""The claims ledger: what the papers say, and goals of ours, judged by the records of all runs that were kept.

A claim has either a paper's figure (or its direction alone) or a goal of ours; :mod:`wavetank.ledger.verdicts` says
what each verdict needs.  All kept runs under a claim's settings are judged together, measured figures separately for
each machine; a run is never taken out because another one pleases more, and the verdict of each stands in the history.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from wavetank.errors import BadFileError
from wavetank.files import write_atomic
from wavetank.ledger import catalog, code, verdicts
from wavetank.ledger.catalog import Claim, Headline, PaperEntry
from wavetank.ledger.verdicts import NOT_RUN
from wavetank.study import effects
from wavetank.study.effects import NOTHING, Effect
from wavetank.study.records import Record, json_number, read_parquet

BEST = "best"

# System, metric and place.
Key = tuple[str, str, str]


@dataclass(frozen=True)
class RunFigures:
    """The figures of one run, and what decides which claims they are about.

    Attributes
    ----------
    study : str
    settings : mapping
        The study's settings of the run, by name.
    systems : tuple of str
        The systems that ran.
    tuned : frozenset of str
        Systems that ran with parameters other than the catalog's: they decide no claim.
    rounds : int
        Rounds that make one replicate: those of a process of a timing study; 1 where each seed is a replicate.
    label : str
        The run's folder, shown as evidence.
    started : str
        Time of the run's start, in ISO's form.
    machine : str
        Processor, cores and device of measured figures.
    code : mapping of str to str
        Checksums of the folders that held the study and its systems; empty where they were not recorded.
    file : Path or None
        The Parquet file of the records, where ``given`` holds none.
    given : tuple of Record
    """

    study: str
    settings: Mapping[str, Any]
    systems: tuple[str, ...]
    tuned: frozenset[str] = frozenset()
    rounds: int = 1
    label: str = ""
    started: str = ""
    machine: str = ""
    code: Mapping[str, str] = field(default_factory=dict)
    file: Path | None = None
    given: tuple[Record, ...] = ()

    @cached_property
    def figures(self) -> dict[Key, dict[int, Record]]:
        """The records by system, metric and place, then by seed (or round)."""
        found: dict[Key, dict[int, Record]] = {}
        for record in self.given or (read_parquet(self.file) if self.file else ()):
            found.setdefault((record.system, record.metric, place(record.at)), {})[record.seed] = record
        return found

    def values(self, system: str, metric: str, at: Mapping[str, Any]) -> dict[int, float]:
        """Return the values of one system at one place, by seed (or round)."""
        found = self.figures.get((system, metric, place(at)), {})
        return {seed: record.value for seed, record in found.items()}

    def kind(self, metric: str) -> str:
        """Return the kind of a metric's figures; empty where the run has none."""
        return next(
            (next(iter(by_seed.values())).kind for key, by_seed in self.figures.items() if key[1] == metric), ""
        )

    def concerns(self, claim: Claim) -> bool:
        """Return whether the claim is about runs like this one."""
        return (
            claim.study == self.study
            and claim.system in self.systems
            and (claim.versus in (None, BEST) or claim.versus in self.systems)
            # A rival that was changed may be the strongest one.
            and set(claim.beside) <= set(self.systems)
            and not (self.tuned if claim.versus == BEST else {claim.system, claim.versus, *claim.beside} & self.tuned)
            and all(_agrees(self.settings.get(key), value) for key, value in claim.where.items())
        )


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A claim with our figure and its verdict.

    Attributes
    ----------
    claim : Claim
    found : Effect
        Ours: a ratio when the claim compares, else the metric's own value.
    verdict : str
        One of :data:`wavetank.ledger.verdicts.VERDICTS`.
    kind : str
        Measured, counted, simulated or modelled; empty when not run.
    versus : str or None
        The system of the comparison: the strongest rival where the claim names the best.
    machine : str
        Where a measured figure was taken; empty for others.
    evidence : tuple of str
        Folders of the records behind it, the oldest first.
    history : tuple of (str, str)
        Start and verdict of every run by itself, the oldest first.
    stale : bool or None
        Whether the code of the system or the study has changed since the newest run; None where that run did not
        record its code.
    """

    claim: Claim
    found: Effect
    verdict: str
    kind: str = ""
    versus: str | None = None
    machine: str = ""
    evidence: tuple[str, ...] = ()
    history: tuple[tuple[str, str], ...] = ()
    stale: bool | None = None

    def as_row(self) -> dict[str, Any]:
        """Return the stable shape that ``--json`` prints."""
        claim = self.claim
        return {
            "system": claim.system,
            "says": claim.says,
            "study": claim.study,
            "metric": claim.metric,
            "versus": self.versus,
            "basis": claim.basis,
            "level": claim.level,
            "figure": claim.paper,
            "at_least": claim.at_least,
            "at_most": claim.at_most,
            "measured": json_number(self.found.centre),
            "low": json_number(self.found.low),
            "high": json_number(self.found.high),
            "least": json_number(self.found.least),
            "most": json_number(self.found.most),
            "count": self.found.count,
            "exact": self.found.exact,
            "kind": self.kind,
            "verdict": self.verdict,
            "machine": self.machine,
            "note": claim.note,
            "evidence": list(self.evidence),
            "history": [list(each) for each in self.history],
            "stale": self.stale,
        }


def place(at: Mapping[str, Any]) -> str:
    """Return coordinates as a key in which equal numbers are equal, whether written 256 or 256.0."""
    plain = {
        name: float(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
        for name, value in at.items()
    }
    return json.dumps(plain, sort_keys=True)


def judge(claim: Claim, runs: Sequence[RunFigures]) -> Finding:
    """Return the finding of a claim from all runs that are about it, taken together.

    Measured figures of different machines do not belong together: give the runs of one machine.

    Parameters
    ----------
    claim : Claim
    runs : sequence of RunFigures
        The oldest first; those that are not about the claim are passed over.
    """
    usable = [run for run in runs if run.concerns(claim) and run.values(claim.system, claim.metric, claim.at)]
    if not usable:
        return Finding(claim=claim, found=NOTHING, verdict=NOT_RUN, versus=claim.versus)
    kind = usable[-1].kind(claim.metric)
    versus = _strongest(claim, usable, kind) if claim.versus == BEST else claim.versus
    found = _together(claim, versus, usable, kind)
    return Finding(
        claim=claim,
        found=found,
        verdict=_verdict(claim, found),
        kind=kind,
        versus=versus,
        machine=usable[-1].machine if kind == "measured" else "",
        evidence=tuple(run.label for run in usable if run.label),
        stale=_stale(claim, usable[-1]),
        history=tuple((run.started, _verdict(claim, _together(claim, versus, [run], kind))) for run in usable),
    )


def _stale(claim: Claim, run: RunFigures) -> bool | None:
    if not run.code:
        return None
    rooms = {catalog.study(claim.study).room, catalog.system(claim.system).room} - {""}
    if not rooms <= set(run.code):
        return None
    return any(run.code[room] != code.checksum(room) for room in rooms)


def _verdict(claim: Claim, found: Effect) -> str:
    if claim.basis == "goal":
        # Of a count that must come out, or of a ratio of two lives, more is no better than less.
        metrics = {metric.name: metric for metric in catalog.study(claim.study).load().metrics}
        sided = claim.metric not in metrics or metrics[claim.metric].better
        return verdicts.of_goal(found, claim.at_least, claim.at_most, better=claim.better if sided else "")
    return verdicts.of_figure(found, claim.paper, better=claim.better, neutral=claim.neutral)


def _together(claim: Claim, versus: str | None, runs: Sequence[RunFigures], kind: str) -> Effect:
    """Return the effect over all runs: replicates of measured figures add up, others are the same figure again."""
    values: dict[tuple[int, int], float] = {}
    for number, run in enumerate(runs):
        mine = run.values(claim.system, claim.metric, claim.at)
        if versus is not None:
            theirs = run.values(versus, claim.metric, claim.at)
            mine = {seed: effects.ratio(value, theirs[seed]) for seed, value in mine.items() if seed in theirs}
        for replicate, value in effects.per_replicate(mine, run.rounds).items():
            # A seed decides what is not measured: the newest run of a seed has the present code's figure.
            values[number if kind == "measured" else 0, replicate] = value
    study = catalog.study(claim.study).load()
    # What must be zero is counted over all that a run does, so that one run without it is a figure of its own.
    exact = kind != "measured" and (study.exact or (versus is None and claim.metric in study.must_be_zero))
    return effects.effect(list(values.values()), exact=exact)


def _strongest(claim: Claim, runs: Sequence[RunFigures], kind: str) -> str | None:
    """Return the strongest rival at the claim's place: no oracle, no mechanism, and no other form of the same paper.

    Rivals of all runs count: a later run with others beside it must not take a stronger one's place.
    """
    everything = catalog.everything()
    own = everything.systems[claim.system].paper
    rivals = {}
    for name in dict.fromkeys(each for run in reversed(runs) for each in run.systems):
        entry = everything.systems.get(name)
        if (
            entry is None
            or name == claim.system
            or entry.role in ("oracle", "mechanism")
            or (own and entry.paper == own)
        ):
            continue
        pooled: dict[int, float] = {}
        for number, run in enumerate(runs):
            of_run = effects.per_replicate(run.values(name, claim.metric, claim.at), run.rounds)
            # A seed decides what is not measured, so that rivals of different runs met the same.
            first = number * 1_000_000 if kind == "measured" else 0
            pooled |= {first + replicate: value for replicate, value in of_run.items()}
        rivals[name] = pooled
    return effects.strongest(rivals, claim.better)


def _agrees(setting: Any, claimed: Any) -> bool:
    """Return whether a run's setting is the claimed one; a list of cases may hold others too."""
    if isinstance(setting, list | tuple) and isinstance(claimed, list | tuple):
        return set(claimed) <= set(setting)
    return bool(setting == claimed)


def findings_of_run(run: RunFigures) -> list[Finding]:
    """Return the findings of the claims that one run can decide, in the order of its systems."""
    found = []
    for name in run.systems:
        entry = catalog.everything().systems.get(name)
        for claim in entry.claims if entry else ():
            if run.concerns(claim):
                found.append(judge(claim, [run]))
    return found


@dataclass(frozen=True)
class HeadlineFinding:
    """How one headline of a paper stands.

    Attributes
    ----------
    headline : Headline
    verdict : str
        The worst verdict of the claims that decide it, its status where none does, else ``no claim``.
    findings : tuple of Finding
        Those of the claims that decide it.
    replicated : bool
        Whether the claims are about the paper's own quantity, and not a proxy or a model alone.
    """

    headline: Headline
    verdict: str
    findings: tuple[Finding, ...]
    replicated: bool


def headlines(paper: PaperEntry, findings: Iterable[Finding]) -> list[HeadlineFinding]:
    """Return how each headline of a paper stands.

    Parameters
    ----------
    paper : PaperEntry
    findings : iterable of Finding
        The ledger, or the part of it that is about the paper.
    """
    mine = [each for each in findings if catalog.system(each.claim.system).paper == paper.name]
    found = []
    for headline in paper.headlines:
        deciding = tuple(each for each in mine if each.claim.headline == headline.name)
        worst = max((each.verdict for each in deciding), key=_GRAVITY.index, default=headline.status or "no claim")
        own = bool(deciding) and all(each.claim.level in ("same", "elsewhere") for each in deciding)
        found.append(HeadlineFinding(headline, worst, deciding, own))
    return found


# From the verdict that any other one outweighs to the gravest.
_GRAVITY = (
    verdicts.REACHED, verdicts.EXCEEDS, verdicts.CONSISTENT, NOT_RUN, verdicts.UNDECIDED, verdicts.SHORT,
    verdicts.ANOTHER, verdicts.CONTRADICTED,
)  # fmt: skip


def evidence_folder() -> Path:
    """Return the folder of committed records: inside an installed package, or at the root of a checkout."""
    inside = Path(__file__).parents[1] / "evidence"
    return inside if inside.is_dir() else Path(__file__).parents[3] / "evidence"


def ledger(names: Iterable[str] = ()) -> list[Finding]:
    """Return every claim (of the named systems, or of all) with its verdict from the kept runs.

    A claim on measured figures has one finding for each machine, that of the newest run last.
    """
    wanted = [catalog.system(name) for name in names] or list(catalog.everything())
    runs = kept_runs({claim.study for entry in wanted for claim in entry.claims})
    found = []
    for entry in wanted:
        for claim in entry.claims:
            usable = [run for run in runs if run.concerns(claim) and run.values(claim.system, claim.metric, claim.at)]
            if not usable or usable[-1].kind(claim.metric) != "measured":
                found.append(judge(claim, usable))
                continue
            # A dictionary keeps the order of first insertion: machines by their newest run.
            machines = list(dict.fromkeys(run.machine for run in reversed(usable)))[::-1]
            found += [judge(claim, [run for run in usable if run.machine == machine]) for machine in machines]
    return found


def kept_runs(studies: Iterable[str] | None = None) -> list[RunFigures]:
    """Return the runs that were kept as evidence, the oldest first; records are read when a claim asks for them.

    Parameters
    ----------
    studies : iterable of str, optional
        Those whose runs are wanted; all when it is left out.

    Raises
    ------
    BadFileError
        If a ``run.json`` cannot be read.
    """
    root = evidence_folder()
    runs = []
    for file in root.glob("*/*/run.json") if studies is None else _files_of(root, studies):
        try:
            about = json.loads(file.read_text(encoding="utf-8"))
            runs.append(
                figures_of(
                    about, file.with_name("records.parquet"), f"evidence/{file.parent.relative_to(root).as_posix()}"
                )
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadFileError(f"A run of the evidence cannot be read: {error!r}", where=str(file)) from error
    return sorted(runs, key=lambda run: (run.started, run.label))


def _files_of(root: Path, studies: Iterable[str]) -> Iterator[Path]:
    for study in studies:
        yield from root.glob(f"{study}/*/run.json")


def verify() -> list[str]:
    """Return what is wrong with the kept runs, one sentence each: checksums, and claimed figures without a metric."""
    wrong = []
    root = evidence_folder()
    for run in kept_runs():
        file = root / run.label.removeprefix("evidence/") / "records.parquet"
        about = json.loads(file.with_name("run.json").read_text(encoding="utf-8"))
        expected = about.get("records_sha256")
        if expected is None:
            wrong.append(f"{run.label}: run.json has no checksum of the records.")
        elif checksum_of(file) != expected:
            wrong.append(f"{run.label}: the records are not those of the run: their checksum differs.")
            continue
        metrics = {metric.name: metric for metric in catalog.study(run.study).load().metrics}
        claimed = {claim.metric for entry in catalog.everything() for claim in entry.claims if claim.study == run.study}
        seen = {
            (metric, next(iter(by_seed.values())).kind)
            for (_, metric, _), by_seed in run.figures.items()
            if metric in claimed
        }
        for metric, kind in sorted(seen):
            if metric not in metrics:
                wrong.append(f"{run.label}: the study {run.study} has no metric {metric} any more.")
            elif metrics[metric].kind != kind:
                wrong.append(f"{run.label}: {metric} was {kind} and is {metrics[metric].kind} now.")
        if missing := {key[0] for key in run.figures} - set(run.systems):
            wrong.append(f"{run.label}: records of {', '.join(sorted(missing))}, which did not run.")
    return wrong


def checksum_of(file: Path) -> str:
    """Return the SHA-256 of a file of records, in hexadecimal digits."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _accepted_file() -> Path:
    return evidence_folder() / "verdicts.json"


def _by_key(findings: Iterable[Finding]) -> dict[str, str]:
    return {
        " | ".join(filter(None, (each.claim.system, each.claim.study, each.claim.says, each.machine))): each.verdict
        for each in findings
    }


def accept(findings: Iterable[Finding]) -> None:
    """Keep the verdicts of the whole ledger, so that :func:`changed` names every later change."""
    kept = dict(sorted(_by_key(findings).items()))
    write_atomic(_accepted_file(), json.dumps(kept, indent=1, ensure_ascii=False) + "\n")


def changed(findings: Iterable[Finding]) -> list[str]:
    """Return which verdicts differ from those that were kept, one sentence each."""
    file = _accepted_file()
    try:
        before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    except (OSError, ValueError) as error:
        raise BadFileError(f"The kept verdicts cannot be read: {error}", where=str(file)) from error
    own = catalog.built_in().systems
    # A plug-in's claims have no kept verdicts, unless somebody accepted some.
    now = {key: verdict for key, verdict in _by_key(findings).items() if key in before or key.split(" | ")[0] in own}
    return [
        f"{key}: {before.get(key, 'no verdict')} before, {now.get(key, 'no claim')} now."
        for key in sorted({*before, *now})
        if before.get(key) != now.get(key)
    ]


def figures_of(about: Mapping[str, Any], records: Path | Sequence[Record], label: str = "") -> RunFigures:
    """Return a run's figures from its provenance and its records.

    Parameters
    ----------
    about : mapping
        The content of ``run.json``.
    records : Path or sequence of Record
        The Parquet file, or what it would hold.
    label : str
        Shown as evidence.
    """
    return RunFigures(
        study=about["study"],
        settings=about["settings"],
        systems=tuple(about["systems"]),
        tuned=frozenset(name for name, values in about["parameters"].items() if values),
        rounds=about.get("rounds_per_replicate", 1),
        label=label,
        started=about["started"],
        machine=machine_of(about),
        code=about.get("code", {}),
        file=records if isinstance(records, Path) else None,
        given=() if isinstance(records, Path) else tuple(records),
    )


def machine_of(about: Mapping[str, Any]) -> str:
    """Return the machine of a run as one line: processor, its widest instructions, cores used, device."""
    machine = about.get("machine", {})
    parts = [machine.get("processor", ""), *machine.get("features", ())]
    parts.append(f"{machine.get('cores', '?')} cores")
    parts += [machine["device"]] if machine.get("device") else []
    return ", ".join(filter(None, parts))
