"""``wavetank advise``: from a problem in one's own words to studies, or from a trace to a decision."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shlex
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wavetank import units
from wavetank.errors import BadFileError, BadValueError, UnknownNameError, WavetankError, nearest_of, unknown_name
from wavetank.exits import DEFECT, INTERRUPTED
from wavetank.ledger import catalog
from wavetank.ledger.catalog import StudyEntry, SystemEntry
from wavetank.terminal import say, say_error, say_heading, say_json, say_wrapped, style, wrapped

if TYPE_CHECKING:
    from wavetank.run.comparison import Comparison, Progress
    from wavetank.run.execute import FailedTrial
    from wavetank.run.runfolder import Plan
    from wavetank.study.answer import Answer
    from wavetank.study.records import Record
    from wavetank.study.study import Study

# The study that decides on a trace of requests to language models.
OF_TRACES = "llm-routing"
SEEDS = 6
_MOST_STUDIES = 5
# Of a kept run, that are not the defaults.
_MOST_SETTINGS = 2
_ENDINGS = (".csv", ".tsv", ".tab", ".txt", ".json", ".jsonl", ".ndjson", ".parquet")
# Settings of studies that take a user's own file, in this order.
_OWN = ("trace", "file")
# Of a generated request: prompt and output.
_MEAN_TOKENS = 1500
# Fewer requests of a trace, however often they are served, are few examples of its traffic.
_FEW = 1000
# From this span on, the busiest minute of a trace is looked at.
_SEVERAL_MINUTES_S = 300.0


@click.command()
@click.argument("words", nargs=-1, metavar="FILE | WORDS...")
@click.option("--gpus", metavar="NxGPU", help="The cluster, such as 16xH100.")
@click.option("--model", metavar="NAME", help="The language model, such as Llama-3.1-70B.")
@click.option("--slo", metavar="ttft=T,tpot=T", help="Objectives, such as ttft=2s,tpot=100ms.")
@click.option(
    "--layout",
    type=click.Choice(["group", "replicas", "decode-group", "split"]),
    help="How the workers step: independent replicas, a group at one barrier, or prefill and decode apart.",
)
@click.option("--set", "pairs", metavar="KEY=VALUE", multiple=True, help="Another setting of the study; repeatable.")
@click.option("--budget", metavar="TIME", default="5min", show_default=True, help="Adds no seed after this time.")
@click.option("--out", metavar="DIR", default="runs", show_default=True, help="Folder in which run folders are stored.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    words: tuple[str, ...],
    gpus: str | None,
    model: str | None,
    slo: str | None,
    layout: str | None,
    pairs: tuple[str, ...],
    budget: str,
    out: str,
    as_json: bool,
) -> int:
    """Advise on a problem, in your own words, or on a trace of requests.

    WORDS ("expert imbalance") find the studies of the problem: their systems, what kept runs say, and how to try it on
    your own workload.  FILE, a trace of requests, is served on your cluster behind every router: the answer, its
    caveats, and the command that launches the best one.
    """
    asked = " ".join(words).strip()
    if not asked:
        raise BadValueError(
            "Nothing was asked for.",
            given=" ".join(words),
            allowed="a problem in your own words, a study's name or a file",
            hint='wavetank advise "tail latency", or wavetank advise mine.csv --gpus 16xH100',
        )
    cluster = any(option is not None for option in (gpus, model, slo, layout)) or bool(pairs)
    trace = _trace_of(asked, wanted=cluster)
    if trace is not None:
        asks = _Asked(trace, gpus, model, slo, layout, pairs)
        return _decide(asks, units.parse_quantity(budget, "s", where="--budget"), Path(out), as_json=as_json)
    if cluster:
        raise BadValueError(
            "These options are about a trace, and no trace was given.",
            given=asked,
            allowed=f"a file of requests, a data set's trace, or {OF_TRACES} for generated requests",
            hint=f"wavetank advise mine.csv ..., or wavetank advise {OF_TRACES} ...",
        )
    cards = _cards(asked)
    if as_json:
        say_json([dataclasses.asdict(card) for card in cards])
        return 0
    for number, card in enumerate(cards):
        if number:
            say()
        _say_card(card)
    return 0


def _trace_of(asked: str, *, wanted: bool) -> str | None:
    """Return the trace that the argument names, None when it is a problem in words."""
    from wavetank.workloads.load import TRACES

    path = Path(asked).expanduser()
    try:
        there = path.exists()
    except (OSError, ValueError):
        there = False
    lower = asked.lower().removesuffix(".gz")
    if (
        asked in TRACES
        or there
        or (lower.endswith(_ENDINGS) and " " not in asked)
        or ("/" in asked and " " not in asked)
    ):
        return asked
    return "generated" if wanted and asked in (OF_TRACES, "generated") else None


# ------------------------------------------------------------------ a problem in words


@dataclass(frozen=True)
class _Card:
    """What is known of one study that a question found."""

    study: str
    asks: str
    problem: str
    systems: tuple[str, ...]
    rivals: tuple[str, ...]
    kept: str
    answer: str
    commands: tuple[str, ...]
    launch: str


def _cards(asked: str) -> list[_Card]:
    from wavetank.ledger.search import index

    everything = catalog.everything()
    if asked in everything.studies:
        return [_card(everything.studies[asked], "")]
    found = index().search(asked, ("study",))
    if not found:
        problem = index().nearest_problem(asked)
        raise UnknownNameError(
            "No study is about this.",
            given=asked,
            nearest=nearest_of(asked, everything.studies) or problem,
            hint=f'wavetank advise "{problem}", or wavetank list --studies' if problem else "wavetank list --studies",
        )
    cards = []
    for match in found[:_MOST_STUDIES]:
        try:
            cards.append(_card(everything.studies[match.name], match.passage))
        except BadFileError as error:
            # What another package registers and cannot be imported; the other studies are shown all the same.
            say_error(error)
    return cards


def _card(entry: StudyEntry, passage: str) -> _Card:
    everything = catalog.everything()
    plain = [everything.systems[name] for name in everything.plain_run(entry.name)]
    label, answer = kept_answer(entry.name)
    systems = [system.name for system in plain if system.role == "system"]
    rivals = [system.name for system in plain if system.role in ("rival", "peer", "baseline")]
    if answer is not None:
        # The strongest rival of the run first, and the system that won.
        versus = [each.versus for each in answer.comparisons if each.versus != answer.baseline]
        rivals = list(dict.fromkeys([*versus, *rivals]))
        systems.sort(key=lambda name: name != answer.best)
    # Where nobody is shown to beat the baseline, that is what to launch.
    best = (answer.best or answer.baseline) if answer is not None else next(iter(systems), "")
    return _Card(
        study=entry.name,
        asks=entry.asks,
        problem=passage if passage in entry.problems else "",
        systems=tuple(systems) or tuple(system.name for system in plain if system.role not in ("baseline", "oracle")),
        rivals=tuple(name for name in rivals if name not in systems),
        kept=label,
        answer=answer.sentence if answer is not None else "",
        commands=tuple(_commands(entry)),
        launch=launch_of(best, [*plain]),
    )


def launch_of(name: str, others: Sequence[SystemEntry] = ()) -> str:
    """Return the command line that puts a system to real work, else that of the first of others that has one.

    Parameters
    ----------
    name : str
        A system, or nothing.
    others : sequence of SystemEntry
        Those to take in its place; empty for none.
    """
    known = catalog.everything().systems
    return next((each.launch for each in [*filter(None, [known.get(name)]), *others] if each.launch), "")


def _commands(entry: StudyEntry) -> list[str]:
    """Return the command lines that try a study, on a user's own file where it takes one."""
    fields = {item.name for item in dataclasses.fields(entry.load())}
    package = entry.object.rpartition(".")[0]
    found = ["wavetank advise mine.csv --gpus 16xH100 --model Llama-3.1-70B"] if entry.name == OF_TRACES else []
    for kind in catalog.commands("check").values():
        if kind.object.startswith(f"{package}."):
            found.append(f"wavetank check FILE{kind.endings[0] if kind.endings else ''}")
    own = next((name for name in _OWN if name in fields), "")
    found.append(f"wavetank compare {entry.name}" + (f" --set {own}=FILE" if own else ""))
    if not own:
        found.append(f"wavetank show {entry.name}   (the settings to make it yours)")
    return found


def kept_answer(study: str) -> tuple[str, Answer | None]:
    """Return what the kept run of a study that decides something says, and that run's label and unusual settings.

    Of several it is the one with the fewest settings that are not the defaults, then with most systems of the plain
    run, then the newest: the nearest to the study's plain run.  Nothing is built or compiled for it.  A run that cannot
    be read is passed over.

    Parameters
    ----------
    study : str
        A study's name.
    """
    from wavetank.ledger.claims import evidence_folder
    from wavetank.run import runfolder
    from wavetank.run.comparison import Comparison
    from wavetank.study.effects import LEAST_FOR_VERDICT
    from wavetank.study.records import read_parquet
    from wavetank.study.study import build_study

    kind = catalog.study(study).load()
    usual = {field.name: field.default for field in dataclasses.fields(kind)}
    contenders = set(catalog.everything().plain_run(study))
    runs = []
    for file in (evidence_folder() / study).glob("*/run.json"):
        started = re.search(r'"started": "([^"]*)"', file.read_text(encoding="utf-8", errors="replace"))
        with contextlib.suppress(WavetankError):
            plan = runfolder.load_plan(file.with_name("study.toml"))
            built = build_study(kind, plan.settings)
            unusual = [name for name, default in usual.items() if getattr(built, name) != default]
            nearness = -len(unusual), len(contenders & set(plan.systems)), started[1] if started else ""
            runs.append((nearness, file.parent, plan, built, unusual))
    undecided: tuple[str, Answer | None] = ("", None)
    for _, folder, plan, built, unusual in sorted(runs, key=lambda run: run[0], reverse=True):
        try:
            records = tuple(read_parquet(folder / "records.parquet"))
            answer = Comparison(built, plan, records, {}, (), folder).answer
        except WavetankError:
            continue
        label = " --set ".join(
            [folder.name, *(f"{name}={units.typed(getattr(built, name))}" for name in unusual[:_MOST_SETTINGS])]
        ) + (f" and {len(unusual) - _MOST_SETTINGS} more settings" if len(unusual) > _MOST_SETTINGS else "")
        if answer is not None and (answer.best or answer.replicates >= LEAST_FOR_VERDICT):
            return label, answer
        if answer is not None and undecided[1] is None:
            undecided = label, answer
    return undecided


def _say_card(card: _Card) -> None:
    say(style(f"{card.study}: ", bold=True, fg="cyan") + wrapped(card.asks, first=" " * (len(card.study) + 2)).lstrip())
    rows = [("problem", card.problem), ("systems", ", ".join(card.systems))]
    more = len(card.rivals) - 3
    rows.append(("rivals", ", ".join(card.rivals[:3]) + (f" and {more} more" if more > 0 else "")))
    rows.append(("so far", f"{card.answer} Kept run: {card.kept}." if card.answer else "no kept run"))
    for label, text in rows:
        if text:
            say_wrapped(text, first=f"  {label:8} ", rest=" " * 11)
    # Commands are for copying: never broken.
    for number, line in enumerate(card.commands):
        say(f"  {'' if number else 'try':8} {line}")
    if card.launch:
        say(f"  {'launch':8} {card.launch}")


# ------------------------------------------------------------------ a trace


@dataclass(frozen=True)
class _Asked:
    """The trace and the options about it, as they were typed."""

    trace: str
    gpus: str | None
    model: str | None
    slo: str | None
    layout: str | None
    pairs: tuple[str, ...]


def _decide(asks: _Asked, budget_s: float, out: Path, *, as_json: bool) -> int:
    """Serve the trace behind every router, and print what to do."""
    from wavetank.run import comparison, runfolder
    from wavetank.run.compiling import CompileWatch, saying_once

    if budget_s <= 0:
        raise BadValueError("The budget must be more than no time.", given=f"{budget_s:g} s", where="--budget")
    settings, assumed = _settings(asks)
    with CompileWatch(saying_once()):
        # What was read stands there before anything is simulated with it, also where the study then refuses it.
        _, study = comparison.make_plan(OF_TRACES, settings=settings, check=False)
        if asks.trace != "generated":
            facts = study.facts()  # type: ignore[attr-defined]
            for line in (*facts.lines(), *facts.notes):
                say_wrapped(line, rest="  ", err=True)
        for line in assumed:
            say_wrapped(line, rest="  ", err=True)
        plan, study = comparison.make_plan(OF_TRACES, seeds=SEEDS, settings=settings)
        say_wrapped(study.assumed(), rest="  ", err=True)  # type: ignore[attr-defined]
    result = _run(plan, study, runfolder.create(out, plan), budget_s, plain=as_json)
    if result is None:
        return INTERRUPTED
    if as_json:
        say_json(_as_json(result, assumed))
    else:
        _say_decision(result, assumed)
    return DEFECT if result.failures else 0


def _settings(asks: _Asked) -> tuple[dict[str, Any], list[str]]:
    """Return the study's settings for what was asked, and what had to be assumed, in sentences."""
    from wavetank.platforms.catalog import as_model
    from wavetank.run import comparison
    from wavetank.settings import check_parameters

    kind = catalog.study(OF_TRACES).load()
    # Sweeps answer other questions, and would take most of the time.
    settings: dict[str, Any] = {
        "trace": asks.trace, "requests": 5000, "window": "busiest", "loads": (), "refreshes_s": (),
    }  # fmt: skip
    given: dict[str, Any] = {}
    for pair in asks.pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise BadValueError("This is not a setting.", given=pair, allowed="KEY=VALUE", where="--set")
        given[key.strip()] = value
    settings |= check_parameters(kind, given, where=f"study {OF_TRACES}", what="setting")
    settings |= _objectives(asks.slo)
    if asks.slo:
        # Who states objectives wants requests served within them, not tokens.
        settings.setdefault("decide_by", "goodput_per_s")
    slots = int(settings.get("max_running", _default(kind, "max_running")))
    tokens = slots * _MEAN_TOKENS
    if asks.trace != "generated":
        _, study = comparison.make_plan(OF_TRACES, settings=settings, check=False)
        tokens = _tokens_at_once(study, asks.trace, slots)
    assumed: list[str] = []
    model = _model(asks.model) if asks.model is not None else str(settings.get("model", _default(kind, "model")))
    settings["model"] = model
    if asks.layout:
        settings["layout"] = asks.layout
    elif "layout" not in given:
        settings["layout"] = "group" if as_model(model).experts else "replicas"
        why = (
            "is a mixture of experts, whose workers step together"
            if as_model(model).experts
            else "is dense, so that workers are independent"
        )
        assumed.append(f"{model} {why}: --layout {settings['layout']}.")
    if asks.gpus is not None:
        settings |= _cluster(asks.gpus, model, tokens, settings, assumed)
    return settings, assumed


def _default(kind: type, name: str) -> Any:
    return next(item.default for item in dataclasses.fields(kind) if item.name == name)


def _tokens_at_once(study: Any, trace: str, slots: int) -> int:
    """Return the tokens of a full worker, at least those of the longest request; a file that is no trace is an error
    with the next step.
    """
    try:
        requests = study.read()
    except BadFileError as error:
        from wavetank.workloads.trace_sources import FORMATS

        lower = trace.lower().removesuffix(".gz")
        # What may be a trace is read as one: its own error says more than that other files have this ending too.
        others = not lower.endswith(FORMATS) and any(
            each.endings and lower.endswith(each.endings) for each in catalog.commands("check").values()
        )
        if not Path(trace).expanduser().is_file():
            error.hint = 'the path of a file of requests, or a problem in words, as in wavetank advise "tail latency"'
        elif others:
            error.hint = f"wavetank check {trace}, if that is what the file is"
        elif error.hint is None:
            error.hint = (
                "a trace has one request per row: arrival, prompt tokens, output tokens; "
                "--set columns=arrival_s=TS,prompt_tokens=IN,output_tokens=OUT names the columns"
            )
        raise
    sizes = requests.prompt_tokens + requests.output_tokens
    return int(max(slots * sizes.mean(), sizes.max()))


def _objectives(text: str | None) -> dict[str, float]:
    """Return the settings of ``ttft=2s,tpot=100ms``."""
    found: dict[str, float] = {}
    for pair in (text or "").split(","):
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not name and not equals:
            continue
        if name not in ("ttft", "tpot"):
            raise unknown_name("objective", name, ("ttft", "tpot"), where="--slo", hint="--slo ttft=2s,tpot=100ms")
        seconds = units.parse_quantity(value, "s", where=f"--slo {name}")
        if not 0 < seconds <= 1e6:
            raise BadValueError("An objective must be more than no time.", given=pair, where="--slo")
        found[f"slo_{name}_s"] = seconds
    if text is not None and not found:
        raise BadValueError("No objective was given.", given=text, allowed="ttft=2s,tpot=100ms", where="--slo")
    return found


def _named(what: str, given: str, known: Sequence[str]) -> str:
    """Return the known name that is meant: without case, or the first that begins with it."""
    folded = given.strip().casefold()
    for name in known:
        if name.casefold() == folded:
            return name
    found = next((name for name in known if folded and name.casefold().startswith(f"{folded}-")), None)
    if found is None:
        raise unknown_name(what, given, known, hint=f"the known ones are those of wavetank.platforms.{what}s()")
    return found


def _model(given: str) -> str:
    from wavetank.platforms.catalog import models

    # As on the hubs: ORGANISATION/NAME-Instruct.
    plain = re.sub(r"-(instruct|chat|it|base)(-.*)?$", "", given.rpartition("/")[2], flags=re.IGNORECASE)
    return _named("model", plain or given, models())


def _cluster(given: str, model: str, tokens: int, settings: dict[str, Any], assumed: list[str]) -> dict[str, Any]:
    """Return workers, device and devices per worker for ``16xH100``, and say what was chosen."""
    from wavetank.platforms import kv_capacity_tokens
    from wavetank.platforms.catalog import devices

    form = re.fullmatch(r"\s*(\d{1,6})\s*[xX*×]\s*(\S+)\s*", given)
    if form is None or int(form[1]) == 0:
        raise BadValueError(
            "This is not a number of GPUs.", given=given, allowed="NxGPU, as in 16xH100", where="--gpus"
        )
    count, device = int(form[1]), _named("device", form[2], devices())
    wanted, fits, reason = int(settings.get("tensor_parallel", 0)), 0, None
    for sharing in [wanted] if wanted else [2**power for power in range(7) if 2**power <= count]:
        try:
            room = kv_capacity_tokens(device, model, sharing)
        except BadValueError as error:
            reason = error
            continue
        fits = sharing
        if room >= tokens:
            break
    if not fits:
        raise reason or BadValueError("There are too few GPUs.", given=given, where="--gpus")
    workers = count // fits
    if workers < 2:
        raise BadValueError(
            "These GPUs hold one worker of this model, so that there is nothing to route.",
            given=f"{given}, {fits} per worker",
            where="--gpus",
            hint=f"--gpus {2 * fits}x{form[2]} or more, or a smaller --model",
        )
    if device.casefold() != form[2].casefold():
        assumed.append(f"{form[2]} is read as {device}.")
    if not wanted and fits > 1:
        assumed.append(f"{fits} GPUs per worker, the fewest that hold the weights and the requests' KV cache.")
    if count % fits:
        assumed.append(f"{count % fits} of the {count} GPUs are left over.")
    return {"workers": workers, "device": device, "tensor_parallel": fits}


class _Spent(Exception):  # noqa: N818  (not an error: the time that the user gave is over)
    """The budget is spent, and the finished seeds are enough for an answer."""

    def __init__(self, seeds: tuple[int, ...]) -> None:
        self.seeds = seeds
        super().__init__(f"{len(seeds)} seeds")


class _Budgeted:
    """Progress that ends a run when its time is spent and the least number of seeds for an answer is finished."""

    def __init__(self, shown: Progress, budget_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._shown, self._budget_s, self._clock = shown, budget_s, clock
        self._start = clock()
        self._systems, self._whole = 1, 0
        self._finished: dict[int, set[str]] = {}

    def begin(self, study: Study, plan: Plan, total: int, left: int, done: Sequence[Record]) -> None:
        """Begin the count of finished seeds."""
        self._systems, self._start = len(plan.systems), self._clock()
        self._shown.begin(study, plan, total, left, done)

    def trial(self, records: Sequence[Record], left: int) -> None:
        """Pass the trial on; raise when no further seed fits into the budget."""
        from wavetank.study.effects import LEAST_FOR_VERDICT

        self._shown.trial(records, left)
        for record in records[:1]:
            self._finished.setdefault(record.seed, set()).add(record.system)
        whole = tuple(sorted(seed for seed, done in self._finished.items() if len(done) == self._systems))
        if not left or len(whole) < LEAST_FOR_VERDICT:
            return
        spent_s, ended = self._clock() - self._start, len(whole) > self._whole
        self._whole = len(whole)
        # A seed that has just ended is the moment to ask whether the next one still fits.
        if spent_s * (len(whole) + ended) / len(whole) > self._budget_s:
            raise _Spent(whole)

    def failed(self, failure: FailedTrial) -> None:
        """Pass the failure on."""
        self._shown.failed(failure)


def _run(plan: Plan, study: Study, folder: Path, budget_s: float, *, plain: bool) -> Comparison | None:
    """Run the plan within the budget; None, with a line on how to go on, after Ctrl-C."""
    from wavetank.cli.progress import progress_for
    from wavetank.files import write_atomic
    from wavetank.run import comparison, runfolder

    try:
        try:
            with progress_for(folder, plain=plain) as progress:
                return comparison.run_plan(plan, study, folder, progress=_Budgeted(progress, budget_s))
        except _Spent as spent:
            fewer = dataclasses.replace(plan, seeds=spent.seeds)
            write_atomic(folder / "study.toml", runfolder.dump_plan(fewer))
            return comparison.run_plan(fewer, study, folder)
    except (comparison.Interrupted, KeyboardInterrupt):
        say(style(f"Interrupted: finished trials are safe in {folder}", err=True, bold=True), err=True)
        say(f"  next: wavetank compare {plan.study} --resume {folder}", err=True)
        return None
    except WavetankError as error:
        say_error(error)
        say(f"  kept: what was finished, in {folder}", err=True)
        raise click.exceptions.Exit(error.exit_code) from error


def _choice(result: Comparison) -> str:
    """Return the system to use: the best one, or the baseline where none is shown to be better."""
    answer = result.answer
    return answer.best if answer is not None and answer.best else result.study.baseline


def _median(result: Comparison, system: str, metric: str) -> float:
    values = [r.value for r in result.records if (r.system, r.metric) == (system, metric) and not r.at]
    return statistics.median(values) if values else float("nan")


def _as_json(result: Comparison, assumed: list[str]) -> dict[str, Any]:
    whole = result.as_json()
    return {
        "study": result.plan.study,
        "answer": whole["answer"],
        "use": _choice(result),
        "launch": _launch(result, _choice(result))[0],
        "assumed": [*assumed, *result.notes],
        "settings": whole["settings"],
        "summary": whole["summary"],
        "failures": whole["failures"],
        "folder": whole["folder"],
        "report": whole["report"],
        "again": result.about["command"],
    }


def _launch(result: Comparison, name: str) -> tuple[str, list[str]]:
    """Return the command that launches a system as it was simulated, and what else it needs, in sentences."""
    line, settings = launch_of(name), result.plan.settings
    if not line:
        return "", []
    slots = settings["max_running"]
    line += f" --max-running {slots}"
    needs = [
        f"one --backend for each of the {settings['workers']} workers, which run up to {slots} requests at once as in "
        f"the simulation (vLLM: --max-num-seqs {slots})"
    ]
    trace = str(settings["trace"])
    if trace != "generated" and getattr(catalog.system(name).load(), "learns_lengths", False):
        if settings["columns"] or settings["time_unit"]:
            needs.append("--learn-from FILE, a trace whose columns are recognised: it learned lengths from the first "
                         "requests")  # fmt: skip
        else:
            line += f" --learn-from {shlex.quote(trace)}"
    return line, needs


def _own_rate(result: Comparison) -> str:
    """Return a sentence on the trace's own rate beside what the cluster can serve; empty where it has none."""
    import numpy as np

    settings, study = result.plan.settings, result.study
    if settings["trace"] == "generated" or settings["load"] == 0:
        return ""
    trace = study.read()  # type: ignore[attr-defined]
    if not trace.span_s > 0:
        return ""
    full_per_s = _median(result, study.baseline, "saturation_per_s")
    rate = f"The trace's own rate is {units.show(trace.rate_per_s, 'requests/s')}"
    share = f"{trace.rate_per_s / full_per_s:.0%}"
    if trace.span_s >= _SEVERAL_MINUTES_S:
        ends = np.searchsorted(trace.arrival_s, trace.arrival_s + 60.0)
        busiest_per_s = float((ends - np.arange(len(trace))).max()) / 60.0
        rate += f", and {units.show(busiest_per_s)} in its busiest minute"
        share += f" and {busiest_per_s / full_per_s:.0%}"
    return (
        f"{rate}: {share} of the {units.show(full_per_s, 'requests/s')} at which this cluster is saturated (median of "
        f"the seeds). The figures are at {settings['load']:.0%}; --set load=0 keeps the trace's own times."
    )


def _objectives_met(result: Comparison, names: Collection[str]) -> str:
    """Return sentences on the share of requests that some systems serve within the objectives, and on their tails."""
    settings = result.plan.settings
    offered_per_s = _median(result, result.study.baseline, "offered_per_s")
    tails = ", ".join(f"{name} {units.show(_median(result, name, 'ttft_p99_s'), 's')}" for name in names)
    said = f"p99 of the TTFT: {tails}."
    # Requests that come all at once are offered at no rate.
    if offered_per_s > 0:
        # What finishes within the span that is looked at may have come before it, so that a share may be above one.
        shares = {name: min(_median(result, name, "goodput_per_s") / offered_per_s, 1.0) for name in names}
        met = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
        ttft, tpot = (units.show(settings[f"slo_{name}_s"], "s") for name in ("ttft", "tpot"))
        offered = units.show(offered_per_s, "requests/s")
        said = f"Within a TTFT of {ttft} and a TPOT of {tpot}: {met} of {offered} offered. {said}"
    return said


def _say_decision(result: Comparison, assumed: list[str]) -> None:
    settings, answer, choice = result.plan.settings, result.answer, _choice(result)
    if answer is not None:
        say(style(wrapped(answer.sentence), bold=True))
        for caveat in answer.caveats:
            say_wrapped(caveat)
    say_wrapped(_objectives_met(result, dict.fromkeys((choice, result.study.baseline))))
    if own := _own_rate(result):
        say_wrapped(own)
    served = len(result.study.split(0)[1])  # type: ignore[attr-defined]
    if settings["trace"] != "generated" and served < _FEW:
        say_wrapped(
            f"Only {served:,} requests of the trace stand behind these figures: a longer trace may give another answer."
        )
    say_heading("Assumed")
    for text in (*assumed, *result.notes):
        say_wrapped(text.removeprefix("Assumed: "), first="  ", rest="    ")
    if result.failures:
        say()
        say_wrapped(f"{len(result.failures)} trials failed: {', '.join(each.trial for each in result.failures[:5])}")
    say_heading(f"Launch {choice}" + ("" if answer is not None and answer.best else " (nothing is shown to be better)"))
    line, needs = _launch(result, choice)
    say(f"  {line or 'It has no launch; the page names those that have one.'}")
    for text in needs:
        say_wrapped(text, first="  ", rest="    ")
    say()
    say(f"page    {result.folder / 'report.html'}")
    say(f"again   {result.about['command']}")
