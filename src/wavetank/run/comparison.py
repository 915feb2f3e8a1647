"""Put one question to several systems: ``wavetank.compare`` and what the command ``compare`` stands on.

>>> import wavetank                                               # doctest: +SKIP
>>> result = wavetank.compare("llm-routing", workers=8, seeds=3)  # doctest: +SKIP
>>> print(result)                                                 # doctest: +SKIP
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from wavetank.errors import BadValueError, RunFolderError, WavetankError, missing_extra
from wavetank.files import write_atomic
from wavetank.ledger import catalog, claims
from wavetank.ledger.catalog import SystemEntry
from wavetank.ledger.verdicts import NOT_RUN
from wavetank.run import own, provenance, runfolder
from wavetank.run.execute import FailedTrial, check_place, run_trials
from wavetank.run.own import OwnSystem
from wavetank.run.progress import listening
from wavetank.run.runfolder import Plan, check_seeds
from wavetank.settings import check_parameters
from wavetank.study.answer import Answer, Figures, Who
from wavetank.study.answer import answer as answer_of
from wavetank.study.records import (
    COLUMNS,
    Record,
    RunLog,
    as_rows,
    canonical_at,
    json_number,
    read_log,
    read_parquet,
    write_parquet,
)
from wavetank.study.study import Study, Trial, build_study, settings_of
from wavetank.study.summary import Row, summarise

if TYPE_CHECKING:
    import pandas
    import pyarrow

    from wavetank.ledger.search import Match
    from wavetank.report.charts import Drawing

# What a system of another package lacks whose code fails: the reason follows.
_BROKEN = "code that works: "
_SUMMARY = (
    "system", "metric", "at", "median", "low", "high", "least", "most", "seeds", "ratio", "unit", "kind",
)  # fmt: skip


class Progress(Protocol):
    """What hears of a study as it runs; the terminal's table is one."""

    def begin(self, study: Study, plan: Plan, total: int, left: int, done: Sequence[Record]) -> None:
        """Called once, before the first trial, with the records of trials that an interrupted run had finished."""

    def trial(self, records: Sequence[Record], left: int) -> None:
        """Called with the records of every trial as it ends."""

    def failed(self, failure: FailedTrial) -> None:
        """Called for a trial that ended in a defect."""


class Silence:
    """Progress that says nothing."""

    def begin(self, study: Study, plan: Plan, total: int, left: int, done: Sequence[Record]) -> None:
        """Say nothing."""

    def trial(self, records: Sequence[Record], left: int) -> None:
        """Say nothing."""

    def failed(self, failure: FailedTrial) -> None:
        """Say nothing."""


class Interrupted(Exception):  # noqa: N818  (not an error: the user asked for it)
    """Ctrl-C came while a study ran; what was finished is in the folder."""

    def __init__(self, folder: Path, finished: int, total: int) -> None:
        self.folder, self.finished, self.total = folder, finished, total
        super().__init__(f"{finished} of {total} trials are safe in {folder}")


@dataclass(frozen=True)
class Comparison:
    """The outcome of one run.

    Attributes
    ----------
    study : Study
        With the settings of the run.
    plan : Plan
    records : tuple of Record
    about : dict
        Provenance.
    failures : tuple of FailedTrial
        Trials that ended in a defect.
    folder : Path
        The run folder.
    """

    study: Study
    plan: Plan
    records: tuple[Record, ...]
    about: dict[str, Any]
    failures: tuple[FailedTrial, ...]
    folder: Path

    @cached_property
    def rows(self) -> list[Row]:
        """One row for every system, metric and coordinate: median, interval, least, most."""
        return summarise(self.records, self.study.rounds_per_replicate)

    @cached_property
    def figures(self) -> Figures:
        """The values by metric, place, system and seed, for paired comparisons."""
        return Figures(self.records, self.study.rounds_per_replicate)

    @property
    def who(self) -> dict[str, Who]:
        """What is known of each system: its role, and the idea that it is a variant of."""
        return {name: self._who(name) for name in self.plan.systems}

    def _who(self, name: str) -> Who:
        if name in self.plan.own:
            # Objects of one class are variants of one idea.
            return Who("system", self.plan.own[name].reference)
        entry = catalog.system(name)
        return Who(entry.role, entry.paper or name)

    def entry(self, name: str) -> SystemEntry:
        """Return what is known of a system of the run: its entry of the catalog, or one made for its user's own."""
        if name in self.plan.own:
            return own.entry_of(self.plan.own[name], self.about)
        return catalog.system(name)

    @cached_property
    def answer(self) -> Answer | None:
        """Who beats the baseline and the strongest rival, by how much, at what cost; None where nothing competes."""
        return answer_of(self.study, self.records, self.who)

    @cached_property
    def findings(self) -> list[claims.Finding]:
        """The claims that this run can decide, with their verdicts."""
        return claims.findings_of_run(
            claims.RunFigures(
                study=self.plan.study,
                settings=self.plan.settings,
                systems=self.plan.of_catalog,
                tuned=frozenset(name for name in self.plan.of_catalog if self.plan.parameters.get(name)),
                rounds=self.study.rounds_per_replicate,
                machine=claims.machine_of(self.about),
                given=self.records,
            )
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know about the settings, as the study said when it ran."""
        return tuple(self.about.get("notes", ()))

    def summary(self) -> str:
        """Return the main figures as a plain text table: one line a system (and case), one column a metric."""
        from wavetank.report.tables import main_table

        return main_table(self).as_text()

    @property
    def verdicts(self) -> list[claims.Finding]:
        """The claims that this run concerns, with their verdicts: those without the word "not run"."""
        return [finding for finding in self.findings if finding.verdict != NOT_RUN]

    def summary_frame(self) -> pandas.DataFrame:
        """Return medians and intervals as a pandas frame: one row a system, metric and place.

        Returns
        -------
        pandas.DataFrame
            Columns ``system``, ``metric``, ``at`` (as JSON text), ``median``, ``low``, ``high``, ``least``, ``most``
            (in ``unit``), ``seeds``, ``ratio`` (mean paired ratio to the baseline, NaN without one), ``unit`` and
            ``kind``.

        Raises
        ------
        WavetankError
            If pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise missing_extra("pandas", "pandas", needed_for="summary_frame()") from None
        metrics = {metric.name: metric for metric in self.study.metrics}
        rows = []
        for row in self.rows:
            ratio = math.nan
            if row.metric in metrics:
                found = self.figures.compare(row.system, self.study.baseline, metrics[row.metric], row.at)
                ratio = found.centre
            rows.append(
                {
                    "system": row.system, "metric": row.metric, "at": canonical_at(row.at), "median": row.median,
                    "low": row.low, "high": row.high, "least": row.least, "most": row.most, "seeds": row.seeds,
                    "ratio": ratio, "unit": row.unit, "kind": row.kind,
                }
            )  # fmt: skip
        return pandas.DataFrame(rows, columns=list(_SUMMARY))

    def plot(self, chart: str | int | None = None) -> Drawing:
        """Return a chart, which a notebook shows and whose ``save(path)`` writes it as SVG.

        Parameters
        ----------
        chart : str or int, optional
            Title (or its beginning) or number, from 1, of a chart of the study; without it, the ratios to the baseline
            behind the answer.

        Raises
        ------
        BadValueError
            If the study has no such chart, or this run has nothing to draw in it.
        """
        from wavetank.report.charts import draw, draw_forest

        titles = [each.title for each in self.study.charts]
        if chart is None:
            forest = draw_forest(self, "plot")
            if forest is None:
                raise BadValueError(
                    "This run compares nothing with the baseline.", allowed=titles, where="chart",
                    hint="name a chart of the study",
                )  # fmt: skip
            return forest
        number = chart - 1 if isinstance(chart, int) else _beginning(titles, chart)
        if not 0 <= number < len(titles):
            raise BadValueError("The study has no such chart.", given=chart, allowed=titles, where="chart")
        drawing = draw(self, self.study.charts[number], "plot")
        if not drawing.panels:
            raise BadValueError(
                " ".join(drawing.notes), given=titles[number], allowed=titles, where="chart",
                hint="result.plot() draws the ratios to the baseline",
            )  # fmt: skip
        return drawing

    def to_arrow(self) -> pyarrow.Table:
        """Return the records as an Arrow table, one row a figure, ``at`` as JSON text."""
        try:
            import pyarrow
        except ImportError:
            raise missing_extra("pyarrow", "pandas", needed_for="to_arrow()") from None
        rows = [row | {"at": canonical_at(row["at"])} for row in as_rows(self.records)]
        return pyarrow.table({name: [row[name] for row in rows] for name in COLUMNS})

    def to_pandas(self) -> pandas.DataFrame:
        """Return the records as a pandas frame, one row a figure, ``at`` as JSON text."""
        try:
            import pandas
        except ImportError:
            raise missing_extra("pandas", "pandas", needed_for="to_pandas()") from None
        rows = [row | {"at": canonical_at(row["at"])} for row in as_rows(self.records)]
        return pandas.DataFrame(rows, columns=list(COLUMNS))

    def report(self, path: str | Path | None = None) -> Path:
        """Write the report, one HTML page that needs nothing else, and return where it is.

        Parameters
        ----------
        path : str or Path, optional
            Defaults to ``report.html`` in the run folder.
        """
        from wavetank.report.page import render

        target = Path(path) if path is not None else self.folder / "report.html"
        try:
            write_atomic(target, render(self))
        except OSError as error:
            raise WavetankError(
                f"The report cannot be written: {error.strerror or error}.", where=str(target)
            ) from error
        return target

    def as_json(self) -> dict[str, Any]:
        """Return the stable shape that ``compare --json`` prints."""
        report = self.folder / "report.html"
        return {
            "study": self.plan.study,
            "answer": self.answer.as_json() if self.answer else None,
            "settings": {name: _json_setting(value) for name, value in self.plan.settings.items()},
            "records": [
                {
                    **{key: row[key] for key in ("system", "seed", "metric", "unit", "kind", "at")},
                    "value": json_number(row["value"]),
                }
                for row in as_rows(self.records)
            ],
            "summary": [
                {
                    "system": row.system,
                    "metric": row.metric,
                    "median": json_number(row.median),
                    "low": json_number(row.low),
                    "high": json_number(row.high),
                    "least": json_number(row.least),
                    "most": json_number(row.most),
                    "seeds": row.seeds,
                    "unit": row.unit,
                    "kind": row.kind,
                    "at": row.at,
                }
                for row in self.rows
            ],
            "claims": [finding.as_row() for finding in self.findings],
            "failures": [failure.trial for failure in self.failures],
            "folder": str(self.folder),
            "report": str(report) if report.exists() else None,
        }

    def __repr__(self) -> str:
        counts = (
            (len(self.plan.systems), "system"), (len(self.plan.seeds), "seed"), (len(self.records), "record"),
        )  # fmt: skip
        words = [f"{count:,} {name}{'' if count == 1 else 's'}" for count, name in counts]
        words += [f"{len(self.failures)} failed"] if self.failures else []
        return f"<Comparison {self.plan.study}: {', '.join(words)} in {self.folder}>"

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        from wavetank.report.tables import main_table

        shown = [main_table(self).as_html()]
        if self.answer is not None:
            words = [f"<strong>{escape(self.answer.sentence)}</strong>", *map(escape, self.answer.caveats)]
            shown = [*(f"<p>{each}</p>" for each in words), *shown]
        return "\n".join(shown)


def _beginning(titles: Sequence[str], chart: str) -> int:
    """Return the number of the title that is this text, or the only one that begins with it; -1 without one."""
    found = [number for number, title in enumerate(titles) if title.lower().startswith(chart.lower())]
    exact = [number for number in found if titles[number].lower() == chart.lower()]
    return exact[0] if exact else found[0] if len(found) == 1 else -1


def studies() -> dict[str, str]:
    """Return the name of every study with the question it asks.

    Examples
    --------
    >>> studies()["llm-routing"]
    'Which router wastes the least time of data-parallel LLM workers?'
    """
    return {name: entry.asks for name, entry in catalog.everything().studies.items()}


def search(question: str) -> list[Match]:
    """Return the studies, systems and papers that words of one's own find, best first.

    Parameters
    ----------
    question : str
        A few words or a sentence.
    """
    from wavetank.ledger.search import index

    return index().search(question)


def _json_setting(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_json_setting(item) for item in value]
    return json_number(value) if isinstance(value, float) else value


def compare(
    study: str,
    *,
    systems: Any = None,
    seeds: int | Sequence[int] | None = None,
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
    on: str = "local",
    out: str | Path = "runs",
    progress: Progress | bool | None = None,
    **settings: Any,
) -> Comparison:
    """Run a study and return what came out.

    Parameters
    ----------
    study : str
        Name of a study (``wavetank list --studies``) or path of a ``study.toml``.
    systems : str, class, object, or iterable of these, optional
        The systems; those that the catalog has in a plain run by default, which ``...`` stands for in a list. A class
        of your own is built with its defaults, or with ``parameters``, for every trial; of an object every trial has a
        copy. It is named after its class: ``MyRouter`` is ``my-router``.
    seeds : int or sequence of int, optional
        How many seeds (0, 1, ...), or which.
    parameters : mapping, optional
        System name to constructor arguments.
    on : str
        Where trials run: see :func:`wavetank.run.execute.run_trials`.
    out : str or Path
        Folder under which the run's folder is made.
    progress : Progress or bool, optional
        Called with every finished trial. True stands for a line of progress, False for silence; without it the line is
        shown in the kernel of a notebook alone.
    **settings
        The study's settings.  ``trace`` may also be a DataFrame, an Arrow table, a list of dicts or a RequestTrace; it
        is written to ``OUT/traces``, and the run's ``study.toml`` names that file.

    Raises
    ------
    WavetankError
        For anything the user can put right; what was recorded before stays.
    Interrupted
        On Ctrl-C.
    """
    from_file = study.endswith(".toml") or "/" in study
    kind = catalog.study(runfolder.load_plan(Path(study)).study if from_file else study).load()
    # What was given in memory is written to files, so that the run's study.toml repeats it.
    settings = kind.kept(settings, Path(out) / "traces")
    with listening(progress) as heard:
        plan, built = make_plan(study, systems=systems, seeds=seeds, parameters=parameters, settings=settings)
        check_place(on)
        return run_plan(plan, built, runfolder.create(Path(out), plan), on=on, progress=heard)


def make_plan(
    study: str,
    *,
    systems: Any = None,
    seeds: int | Sequence[int] | None = None,
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
    settings: Mapping[str, Any] | None = None,
    added: Iterable[OwnSystem] = (),
    check: bool = True,
) -> tuple[Plan, Study]:
    """Check everything a user gave and return the plan with the study it is about.

    ``check=False`` leaves out what needs the study's data: to read a finished run nobody needs it.

    Parameters
    ----------
    study : str
        A study's name, or the path of a ``study.toml``.
    systems, seeds, parameters, settings
        As :func:`compare` takes them.
    added : iterable of OwnSystem
        Systems of the user's own that take part besides.
    check : bool
    """
    base = Plan(study=study, settings={}, systems=(), seeds=())
    if study.endswith(".toml") or "/" in study:
        base = runfolder.load_plan(Path(study))
    kind = catalog.study(base.study).load()
    built: Study = build_study(kind, {**base.settings, **(settings or {})})
    plain_run = base.systems or _runnable(built)
    chosen, owned = own.collect(plain_run if systems is None else _each(systems, plain_run), added)
    owned = {**base.own, **owned}
    if not chosen:
        raise BadValueError(
            "No system was chosen.", allowed=catalog.everything().systems_of(base.study), where=f"study {base.study}"
        )
    given = {name: dict(values) for name, values in (parameters or {}).items()}
    for name in given:
        if name not in chosen and (name in owned or catalog.system(name)):
            raise BadValueError(
                f"A parameter was set for {name!r}, which is not among the chosen systems.",
                allowed=chosen,
                where="--set",
            )
    tuned = {}
    for name in chosen:
        values = {**base.parameters.get(name, {}), **given.get(name, {})}
        if name not in owned:
            values = _checked(name, base.study, values)
        elif owned[name].made is not None:
            # An object has its own, whatever a study file says.
            values = own.fitted(owned[name], base.study, given.get(name, {}))
        elif owned[name].kind is not None or check:
            values = own.fitted(owned[name], base.study, values)
        if values:
            tuned[name] = values
    plan = Plan(
        study=base.study,
        settings=settings_of(built),
        systems=tuple(chosen),
        parameters=tuned,
        seeds=_seeds(seeds) or base.seeds or tuple(range(built.default_seeds)),
        own={name: owned[name] for name in chosen if name in owned},
    )
    if check:
        empty = next((name for name, value in plan.settings.items() if value in ((), [])), "")
        if empty and not built.trials(plan.systems, plan.seeds):
            raise BadValueError(
                "Without a value of this setting there is nothing to run.",
                given="", where=f"study {base.study}, {empty}",
            )  # fmt: skip
        built.check()
    return plan, built


def _each(systems: Any, plain_run: Sequence[str]) -> list[Any]:
    """Return the systems of a list, those of the plain run in place of ``...``; a lone system is a list of one."""
    if isinstance(systems, str | type) or not isinstance(systems, Iterable):
        # A lone name is an iterable of letters, too.
        systems = (systems,)
    found: list[Any] = []
    for each in systems:
        found += plain_run if each is ... else [each]
    return found


def _checked(name: str, study: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a system of the catalog, once it has been built with them."""
    entry = catalog.system(name)
    if study not in entry.studies:
        raise BadValueError(
            f"The system {name!r} is no system of {study!r}.",
            allowed=catalog.everything().systems_of(study),
            where="--systems",
            hint=f"it takes part in: {', '.join(entry.studies) or 'no study'}",
        )
    entry.build(**values)
    return check_parameters(entry.load(), values, where=f"system {name}") if values else {}


def _lacking(study: Study) -> dict[str, str]:
    """Return which of the study's systems cannot run here, and what each lacks.

    Only what the study can do without: when a system that it is about, or its baseline, cannot run, that is an error.
    A system of another package is an addition, whatever its role: where its code fails, the study goes on without it.
    """
    lacking = {}
    for name in catalog.everything().plain_run(study.name):
        entry = catalog.system(name)
        lack = entry.lacks() if name != study.baseline and entry.role != "system" else ""
        # A program that lies elsewhere may be named by the study's setting of its name.
        if lack and not getattr(study, lack.removeprefix("program:").replace("-", "_"), ""):
            lacking[name] = lack
        elif not lack and name != study.baseline and name not in catalog.built_in().systems:
            try:
                entry.build()
            except WavetankError as error:
                lacking[name] = f"{_BROKEN}{error.problem.rstrip('.')} ({error.where})"
    return lacking


def _runnable(study: Study) -> tuple[str, ...]:
    lacking = _lacking(study)
    return tuple(name for name in catalog.everything().plain_run(study.name) if name not in lacking)


def _missing(study: Study, chosen: Sequence[str]) -> dict[str, str]:
    """Return what each system lacks that a plain run leaves out here; nothing when the user chose the systems."""
    lacking = _lacking(study)
    return lacking if set(chosen) == set(catalog.everything().plain_run(study.name)) - set(lacking) else {}


def extras_left_out(study: Study, chosen: Sequence[str]) -> tuple[str, ...]:
    """Return the extras of this package with which a plain run would leave out fewer systems here.

    Parameters
    ----------
    study : Study
    chosen : sequence of str
        The systems of the run.
    """
    found: dict[str, None] = {}
    for name, lack in _missing(study, chosen).items():
        extra = catalog.system(name).extra
        if extra and name in catalog.built_in().systems and not lack.startswith(("cuda", "data:", "program:")):
            found[extra] = None
    return tuple(found)


def _left_out(study: Study, chosen: Sequence[str]) -> list[str]:
    """Return one note for each system that is missing because it cannot run here; none when the user chose."""
    notes = []
    for name, lack in _missing(study, chosen).items():
        if lack.startswith(_BROKEN):
            notes.append(f"Left out: {name}. {lack.removeprefix(_BROKEN)}.")
            continue
        # How to install it depends on the machine, and notes are kept with the run.
        extra = catalog.system(name).extra
        hint = f" (extra {extra}{'' if name in catalog.built_in().systems else ' of its package'})" if extra else ""
        what = f"the library {lack.removeprefix('package:')!r}"
        if lack == "cuda":
            what, hint = "a CUDA device", ""
        elif lack.startswith("blas:"):
            what = f"the library {lack.removeprefix('blas:')!r}"
        elif lack.startswith("program:"):
            what = f"the program {lack.removeprefix('program:')!r}"
            hint = f", which is neither in {catalog.PEERS} (make peers) nor on the search path"
        elif lack.startswith("data:"):
            data = lack.removeprefix("data:")
            what, hint = f"the data set {data!r}", f" (wavetank data fetch {data})"
        notes.append(f"Left out: {name} needs {what}{hint}.")
    return notes


def _seeds(seeds: int | Sequence[int] | None) -> tuple[int, ...]:
    if seeds is None:
        return ()
    check_seeds(seeds, "--seeds")
    chosen = tuple(range(seeds)) if isinstance(seeds, int) else tuple(dict.fromkeys(seeds))
    if not chosen or min(chosen) < 0:
        raise BadValueError("The seeds must be one or more numbers from 0.", given=seeds, where="--seeds")
    return chosen


def run_plan(
    plan: Plan, study: Study, folder: Path, *, on: str = "local", progress: Progress | None = None
) -> Comparison:
    """Run what is not yet finished in ``folder``, then write records, provenance and report.

    Parameters
    ----------
    plan : Plan
    study : Study
        The study of the plan, built with the plan's settings.
    folder : Path
        The run's folder, new or with the records of a run that was interrupted.
    on : str
        Where trials run: ``local``, ``processes``, ``processes:N`` or an address of Dask's.
    progress : Progress, optional
    """
    progress = progress or Silence()
    trials = study.trials(plan.systems, plan.seeds)
    failures = []
    log = RunLog(folder / "records.jsonl")
    try:
        about = {
            **provenance.of_run(plan, study, on),
            "notes": [*study.notes(), *_left_out(study, plan.of_catalog), *own.notes(plan.own.values())],
        }
        start = time.perf_counter()
        left: list[Trial] = [trial for trial in trials if trial.key not in log.finished]
        progress.begin(study, plan, len(trials), len(left), [r for done in log.finished.values() for r in done.records])
        waiting = len(left)
        # Closed at once, whatever happens: workers must not outlive an error or Ctrl-C.
        parcels = {name: each.parcel for name, each in plan.own.items() if each.parcel is not None}
        with contextlib.closing(run_trials(study, left, plan.parameters, on, parcels)) as outcomes:
            for outcome in outcomes:
                waiting -= 1
                if isinstance(outcome, FailedTrial):
                    if outcome.error is not None:
                        outcome.error.where = outcome.error.where or _where(outcome.trial)
                        raise outcome.error
                    failures.append(outcome)
                    progress.failed(outcome)
                    continue
                log.append(outcome)
                progress.trial(outcome.records, waiting)
    except KeyboardInterrupt:
        raise Interrupted(folder, len(log.finished), len(trials)) from None
    finally:
        log.close()
    # In the plan's order, whatever the order of completion: equal runs give equal files.
    records = tuple(r for trial in trials if trial.key in log.finished for r in log.finished[trial.key].records)
    records += tuple(study.conclude(records))
    about["wall_s"] = round(time.perf_counter() - start, 3)
    about["trial_wall_s"] = round(sum(done.wall_s for done in log.finished.values()), 3)
    write_parquet(records, folder / "records.parquet")
    result = Comparison(study, plan, records, about, tuple(failures), folder)
    try:
        write_atomic(folder / "run.json", json.dumps(about, indent=1) + "\n")
    except OSError as error:
        raise RunFolderError(
            f"The run's provenance cannot be written: {error.strerror or error}.",
            where=str(folder / "run.json"),
            hint=f"the records are safe: make room, then repeat the command with --resume {folder}",
        ) from error
    if records:
        result.report()
    return result


def _where(trial: str) -> str:
    """Return a trial's key as words; the systems that share one are too many to name."""
    systems, _, rest = trial.partition("#")
    seed, _, case = rest.partition("/")
    words = [case] if case else []
    words += [] if "+" in systems else [systems]
    return f"trial {', '.join([*words, f'seed {seed}'])}"


def resume(
    folder: Path, *, systems: Iterable[Any] = (), on: str = "local", progress: Progress | None = None
) -> Comparison:
    """Go on with a run that was interrupted; finished trials are not run again.

    Parameters
    ----------
    folder : Path
        The run's folder.
    systems : iterable of classes and objects
        The systems of the run that are its user's own, given as they were: their code is in no folder of a run.
    on, progress
        As :func:`compare` takes them.
    """
    before = runfolder.load_plan(folder / "study.toml")
    plan, study = make_plan(str(folder / "study.toml"), added=own.collect(systems)[1].values())
    own.check_same(before.own, plan.own, folder)
    return run_plan(plan, study, folder, on=on, progress=progress)


def load(folder: str | Path) -> Comparison:
    """Read a finished run (or the finished trials of an interrupted one) from its folder."""
    folder = Path(folder)
    if not (folder / "study.toml").exists():
        hint = "the folder that wavetank compare printed, as in runs/STUDY/TIME; wavetank serve RUNS lists them"
        raise RunFolderError("There is no run in this folder.", where=str(folder), hint=hint)
    plan = runfolder.load_plan(folder / "study.toml")
    plan, study = make_plan(
        plan.study,
        systems=plan.systems,
        seeds=plan.seeds,
        parameters=plan.parameters,
        settings=plan.settings,
        added=plan.own.values(),
        check=False,
    )
    if (folder / "records.parquet").exists():
        records = tuple(read_parquet(folder / "records.parquet"))
    else:
        records = tuple(record for done in read_log(folder / "records.jsonl") for record in done.records)
    about_file = folder / "run.json"
    about = json.loads(about_file.read_text()) if about_file.exists() else {}
    return Comparison(study, plan, records, about, (), folder)


def check_label(label: str) -> None:
    """Raise BadValueError when evidence cannot be kept under this label."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*", label):
        raise BadValueError("A label is made of letters, digits, dots and hyphens.", given=label, where="--evidence")


def check_evidence(owned: Collection[str]) -> None:
    """Raise BadValueError when systems take part that others do not have, who must be able to repeat what is kept."""
    if owned:
        raise BadValueError(
            "Evidence is kept of systems of the catalog only.", given=", ".join(owned), where="--evidence",
            hint="wavetank new system NAME writes what a system of the catalog needs",
        )  # fmt: skip


def keep_as_evidence(result: Comparison, label: str) -> Path:
    """Copy what the ledger needs of a run (not the report) to ``evidence/STUDY/LABEL`` and return that folder.

    A run that was kept before stays: the next one under its label is LABEL-2, and both are judged together.

    Parameters
    ----------
    result : Comparison
        A finished run.
    label : str
        The name under which it is kept: letters, digits, dots, dashes and underscores.
    """
    import shutil

    check_label(label)
    check_evidence(result.plan.own)
    above = claims.evidence_folder() / result.plan.study
    target, number = above / label, 1
    try:
        above.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                target.mkdir()
                break
            except FileExistsError:
                number += 1
                target = above / f"{label}-{number}"
        for name in ("study.toml", "records.parquet"):
            shutil.copyfile(result.folder / name, target / name)
        checksum = claims.checksum_of(target / "records.parquet")
        # Written last, so that the ledger sees whole runs only.
        write_atomic(target / "run.json", json.dumps({**result.about, "records_sha256": checksum}, indent=1) + "\n")
    except OSError as error:
        raise RunFolderError(
            f"The run cannot be kept as evidence: {error.strerror or error}.", where=str(target)
        ) from error
    return target
