"""Light Cone Consistency at the command line: which consistency models allow a recorded history, and where it breaks.

A model is a point of one coordinate system, so one engine answers for all of them and knows which answers follow from
which.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from wavetank.check.consistency.configurations import MODELS, model
from wavetank.check.consistency.dependencies import Link
from wavetank.check.consistency.engine import Judgement, judge, judge_all, strongest
from wavetank.check.consistency.files import file_of, read_history
from wavetank.check.consistency.objects import OBJECTS, object_of
from wavetank.check.consistency.rules import RULES, judge_rule
from wavetank.check.consistency.timeline import timeline_page
from wavetank.check.consistency.visibility import Clocks
from wavetank.check.consistency.watch import BudgetSpentError, Watch
from wavetank.check.report import Budget, CheckReport, Verdict
from wavetank.errors import BadFileError, BadValueError
from wavetank.settings import setting
from wavetank.sim.history import History

_SHOWN = 40


@dataclass(frozen=True, kw_only=True)
class HistoryCheck:
    """Judges a history against consistency models.

    Parameters
    ----------
    models : tuple of str
        Names of models or rules, or ``all`` models.  ``auto``: the rule of a recorded workload that has one,
        ``strict-serializable`` of transactions, else ``linearizable``.
    names : tuple of str
        ``THEIRS:OURS``: a function of a recording means a known one, or is left out with ``THEIRS:ignore``.

    References
    ----------
    Landers and Kramer, arXiv 2605.09114, 2026.
    """

    models: tuple[str, ...] = setting(
        ("auto",), says="Models or rules to check; auto: those that fit the operations; or all models",
        choices=("auto", "all", *MODELS, *RULES),
    )  # fmt: skip
    store: str = setting("auto", says="Kind of object that the operations act on", choices=("auto", *OBJECTS))
    delta_s: float = setting(
        1.0, unit="s", says="Age from which a write must be visible, on the history's clock", low=0.0
    )
    settled_s: float = setting(
        float("inf"), unit="s", says="How long after the last write all reads must agree", low=0.0
    )
    keyed: str = setting(
        "auto", says="Whether values of a recording are [key value] pairs", choices=("auto", "true", "false")
    )
    names: tuple[str, ...] = setting((), says="Known name of each recorded function, THEIRS:OURS, or THEIRS:ignore")
    k: int = setting(2, says="Number of last writes from which k-linearizable lets a read return", low=1, high=16)

    def __post_init__(self) -> None:
        """Refuse a check that would ask nothing: it would end as if all held."""
        if not self.models:
            raise BadValueError("No model was chosen.", allowed="auto, all, or names of models", where="models")

    def check(self, path: Path, budget: Budget) -> CheckReport:
        """Read a history and judge it.

        Parameters
        ----------
        path : Path
            In any format of :func:`~wavetank.check.consistency.files.read_history`.
        budget : Budget

        Raises
        ------
        BadFileError
            If the file cannot be read, or its operations fit no store; with line and column where there is one.
        """
        watch = Watch(budget.seconds, budget.memory_bytes)
        history: History | None = None
        judged: dict[str, Judgement] = {}
        try:
            names = self._names()
            size = _size_of(path)
            if size > budget.memory_bytes:
                has = f"{budget.memory_bytes:,} bytes are fewer than the file's {size:,}"
                return self._unread(path, f"memory: {has}")
            with watch:
                history = read_history(path, keyed=None if self.keyed == "auto" else self.keyed == "true", names=names)
                self._judge(history, dataclasses.replace(budget, seconds=watch.left_s()), judged)
            store = _store(history, self.store)
        except BudgetSpentError:
            # It may have arrived while the watch was ending.
            watch.close()
            if history is None:
                return self._unread(path, f"{watch.spent} before the file was read")
            judged = {name: judged.get(name) or _undecided(name, watch.spent) for name in self._asked(history)}
            store = _store(history, self.store)
        except BadValueError as error:
            raise BadFileError(
                error.problem, given=error.given, allowed=error.allowed, nearest=error.nearest,
                where=f"{path}, {error.where}" if (error.where or "").startswith("operation ") else str(path),
                hint=error.hint,
            ) from error  # fmt: skip
        except RecursionError as error:
            raise BadFileError("A value of the history is nested too deeply.", where=str(path)) from error
        except MemoryError as error:
            raise BadFileError("The history does not fit into this machine's memory.", where=str(path)) from error
        operations = history.operations
        keys = {operation.key for operation in operations}
        unanswered = sum(1 for operation in operations if operation.returned is None)
        facts = [
            ("operations", f"{len(operations)}, {unanswered} of them never returned"),
            ("processes", str(len({operation.process for operation in operations}))),
            ("keys", str(len(keys))),
            ("store", store),
            ("clock", "seconds" if history.clock == "seconds" else "numbers of events: delta and settled count events"),
        ]
        facts += history.notes
        if sum(1 for name in judged if name in MODELS) > 1:
            found = strongest({name: each for name, each in judged.items() if name in MODELS})
            facts.append(("strongest that hold", ", ".join(found) or "none"))
        failed = any(each.outcome == "violated" for each in judged.values())
        return CheckReport(
            subject=path.name,
            kind="history",
            facts=facts,
            verdicts=[_verdict(history, each) for each in judged.values()],
            page=timeline_page(history, list(judged.values()), path.name) if failed else "",
        )

    def judge(self, history: History, budget: Budget | None = None) -> dict[str, Judgement]:
        """Judge a history against the models.

        Returns
        -------
        dict
            Model to judgement.

        Raises
        ------
        UnknownNameError, BadValueError
            For a model that does not exist, or operations that fit no store.
        """
        judged: dict[str, Judgement] = {}
        self._judge(history, budget or Budget(), judged)
        return judged

    def _judge(self, history: History, budget: Budget, judged: dict[str, Judgement]) -> None:
        """Judge, and put each judgement where it stays if the rest is cut off."""
        names = self._asked(history)
        clocks = Clocks(delta_s=self.delta_s, settled_s=self.settled_s)
        for name in names:
            if name in RULES:
                judged[name] = judge_rule(history, name)
        models = [name for name in names if name not in RULES]
        if len(models) == 1:
            judged[models[0]] = judge(history, models[0], store=self.store, clocks=clocks, k=self.k, budget=budget)
        elif models:
            judge_all(history, models, store=self.store, clocks=clocks, k=self.k, budget=budget, found=judged)
        decided = {name: judged[name] for name in names}
        judged.clear()
        judged.update(decided)

    def _asked(self, history: History) -> list[str]:
        """Return the names of the models and rules to judge by."""
        chosen = [each for name in self.models for each in (_fitting(history) if name == "auto" else [name])]
        return list(MODELS) if "all" in chosen else [
            name if name in RULES else model(name).name for name in dict.fromkeys(chosen)
        ]  # fmt: skip

    def _unread(self, path: Path, spent: str) -> CheckReport:
        """Report that the budget was too small for the file itself."""
        return CheckReport(
            subject=path.name,
            kind="history",
            verdicts=[
                Verdict(
                    name="what fits the operations" if name == "auto" else "all models" if name == "all" else name,
                    outcome="undecided",
                    says=f"{spent}; --seconds and --memory set the budget",
                )
                for name in self.models
            ],
        )

    def _names(self) -> dict[str, str]:
        found = {}
        for pair in self.names:
            theirs, colon, ours = pair.strip().partition(":")
            if not colon or not theirs or not ours:
                raise BadValueError("A name is given as THEIRS:OURS.", given=pair, where="names",
                                    hint="--set names=fetch:read,store:write")  # fmt: skip
            found[theirs] = ours
        return found


def _undecided(name: str, spent: str) -> Judgement:
    says = f"{spent}; --seconds and --memory set the budget"
    return Judgement(model=name, outcome="undecided", says=says, by="none")


def _size_of(path: Path) -> int:
    try:
        return file_of(path).stat().st_size
    except OSError as error:
        raise BadFileError("The file cannot be read.", given=str(error), where=str(path)) from error


def _fitting(history: History) -> list[str]:
    """Return what is asked of a history when nothing is named."""
    if history.rule:
        return [history.rule]
    transactions = any(operation.action == "transaction" for operation in history.operations)
    return ["strict-serializable" if transactions else "linearizable"]


def _store(history: History, given: str) -> str:
    try:
        kind = object_of(history, given)
    except BadValueError:
        # A rule may be of operations that no object has.
        if not history.rule:
            raise
        return history.rule
    return f"{kind.name}: {kind.says}"


def _verdict(history: History, judged: Judgement) -> Verdict:
    lines = []
    if judged.outcome == "violated":
        if judged.good is not None:
            returned = sum(1 for operation in history.operations if operation.returned is not None)
            lines.append(f"longest good prefix: {judged.good} of {returned} returns, until {judged.good_until:.9g}")
        for anomaly in judged.anomalies:
            lines.append(f"{anomaly.name}: {anomaly.says}")
            lines += [f"  {_link(link)}" for link in anomaly.links[:_SHOWN]]
        numbers = list(judged.cycle) or ([judged.culprit] if judged.culprit is not None else [])
        lines += [f"{number}: {_line(history, number)}" for number in numbers[:_SHOWN]]
        if judged.order:
            order = " ".join(map(str, judged.order[-_SHOWN:]))
            lines.append(f"an order of the good prefix ends: {order}")
    return Verdict(
        name=judged.model, outcome=judged.outcome, says=judged.says, by=judged.by, seconds=judged.seconds,
        evidence="\n".join(lines),
        anomalies=tuple(
            {"name": each.name, "says": each.says, "operations": list(each.operations),
             "edges": [link._asdict() for link in each.links]}
            for each in judged.anomalies
        ),
    )  # fmt: skip


_WHY = {
    "ww": "wrote {key} before {head} did",
    "wr": "wrote what {head} read of {key}",
    "rw": "read {key} before what {head} wrote",
    "process": "came before {head} in its process",
    "rt": "had returned before {head} was invoked",
}


def _link(link: Link) -> str:
    return f"{link.tail} -{link.kind}-> {link.head}: {link.tail} {_WHY[link.kind].format(key=link.key, head=link.head)}"


def _line(history: History, number: int) -> str:
    operation = history.operations[number]
    returned = "never returned" if operation.returned is None else f"returned {operation.returned:.9g}"
    what = f"{operation.action} {operation.key}".strip()
    value = "" if operation.value is None else f" {operation.value!r}"
    answer = f" -> {operation.result!r}" if operation.action == "read" or operation.result is not None else ""
    text = f"{what}{value}{answer}"
    text = text if len(text) <= 120 else f"{text[:60]} ... {text[-55:]}"
    return f"process {operation.process}, {text}, invoked {operation.invoked:.9g}, {returned}"
