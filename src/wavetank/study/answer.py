"""The answer of a run: who beats the baseline and the strongest rival, by how much, at what cost, and where it turns.

Everything is judged on paired ratios over replicates (:mod:`wavetank.study.effects`); the interval of each comparison
is widened for the number of comparisons that are looked at together, so that of equal systems one in twenty runs at
most names a better one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wavetank.study import effects
from wavetank.study.effects import LEAST_FOR_INTERVAL, LEAST_FOR_VERDICT, Effect
from wavetank.study.records import Record, canonical_at, json_number
from wavetank.study.study import Metric, Study

BETTER, WORSE, EQUAL, UNDECIDED = "better", "worse", "equal", "undecided"
SOLE, SHARED = "sole", "shared"

# A gain below this is no reason to change anything, and two such systems are called equal.
_NEGLIGIBLE = 0.005


@dataclass(frozen=True)
class Who:
    """What the catalog says of a system that an answer needs.

    Attributes
    ----------
    role : str
        The system's role; an oracle never wins, a mechanism is no rival.
    family : str
        The idea that it is a variant of: variants of one idea do not compete.
    """

    role: str
    family: str


@dataclass(frozen=True)
class Comparison:
    """One system against another on one metric at one place.

    Attributes
    ----------
    system, versus, metric : str
    case : str
        The case of a study that has cases, else empty.
    found : Effect
        The ratio system / versus.
    outcome : str
        ``better``, ``worse``, ``equal`` (exactly, or by less than half a percent) or ``undecided``.
    """

    system: str
    versus: str
    metric: str
    case: str
    found: Effect
    outcome: str


@dataclass(frozen=True)
class Answer:
    """What a run says to the study's question.

    Attributes
    ----------
    sentence : str
        The answer in one sentence.
    caveats : tuple of str
        What it costs, where it turns, what stays undecided.
    metric : str
        The primary metric.
    baseline : str
    best : str
        The system that the sentence is about; empty where none is better than the baseline.
    comparisons : tuple of Comparison
        Every system against the baseline on the primary metric, place by place; then the best one against the
        strongest rival.
    replicates : int
        Pairs behind the comparisons: the most that any has.
    """

    sentence: str
    caveats: tuple[str, ...]
    metric: str
    baseline: str
    best: str = ""
    comparisons: tuple[Comparison, ...] = field(default=(), repr=False)
    replicates: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the stable shape that ``--json`` prints."""
        return {
            "sentence": self.sentence,
            "caveats": list(self.caveats),
            "metric": self.metric,
            "baseline": self.baseline,
            "best": self.best or None,
            "replicates": self.replicates,
            "comparisons": [
                {
                    "system": each.system,
                    "versus": each.versus,
                    "metric": each.metric,
                    "case": each.case,
                    "ratio": json_number(each.found.centre),
                    "low": json_number(each.found.low),
                    "high": json_number(each.found.high),
                    "least": json_number(each.found.least),
                    "most": json_number(each.found.most),
                    "pairs": each.found.count,
                    "outcome": each.outcome,
                }
                for each in self.comparisons
            ],
        }

    def __str__(self) -> str:
        return "\n".join([self.sentence, *self.caveats])


class Figures:
    """The values of a run by metric and place, then by system and seed."""

    def __init__(self, records: Iterable[Record], rounds: int = 1) -> None:
        self._values: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
        self._places: dict[str, dict[str, Mapping[str, float | str]]] = {}
        self._rounds = rounds
        for record in records:
            key = canonical_at(record.at)
            if not math.isnan(record.value):
                self._values.setdefault((record.metric, key), {}).setdefault(record.system, {})[record.seed] = (
                    record.value
                )
            self._places.setdefault(record.metric, {})[key] = record.at

    def values(self, metric: str, at: Mapping[str, Any]) -> dict[str, dict[int, float]]:
        """Return the values of all systems at one place, by seed (or round)."""
        return self._values.get((metric, canonical_at(at)), {})

    def places(self, metric: str) -> list[Mapping[str, float | str]]:
        """Return the places at which a metric was recorded, in order of first appearance."""
        return list(self._places.get(metric, {}).values())

    def compare(
        self,
        system: str,
        versus: str,
        metric: Metric,
        at: Mapping[str, Any],
        *,
        comparisons: int = 1,
        exact: bool = False,
    ) -> Effect:
        """Return the paired ratio of two systems at one place."""
        values = self.values(metric.name, at)
        return effects.paired(
            values.get(system, {}), values.get(versus, {}),
            rounds=self._rounds, comparisons=comparisons, exact=exact and metric.kind != "measured",
        )  # fmt: skip


def outcome_of(found: Effect, better: str) -> str:
    """Return what a ratio says: better, worse, equal or undecided.

    Parameters
    ----------
    found : Effect
        The ratio to another system.
    better : str
        ``lower`` or ``higher``.
    """
    if not found.decided:
        return UNDECIDED
    if found.low == found.high == 1 or (found.low > 1 - _NEGLIGIBLE and found.high < 1 + _NEGLIGIBLE):
        return EQUAL
    if found.low > 1:
        return BETTER if better == "higher" else WORSE
    if found.high < 1:
        return BETTER if better == "lower" else WORSE
    return UNDECIDED


def standings(
    figures: Figures,
    metric: Metric,
    at: Mapping[str, Any],
    who: Mapping[str, Who],
    *,
    columns: int,
    exact: bool = False,
) -> dict[str, str]:
    """Return who leads at one place: ``sole`` for a system (with variants of its idea) that beats every other one,
    ``shared`` for the several that nobody is shown to beat while others are beaten.

    Nobody leads with fewer than six pairs, unless the figures are exact.

    Parameters
    ----------
    figures : Figures
    metric : Metric
        With a better side.
    at : mapping
        The place.
    who : mapping of str to Who
        The systems that take part.
    columns : int
        How many such places and metrics a reader looks at together.
    exact : bool
        Whether figures that are not measured are the same in every run.
    """
    values = figures.values(metric.name, at)
    having = {name: values[name] for name in who if values.get(name) and who[name].role != "oracle"}
    best = effects.strongest(having, metric.better)
    if best is None or len(having) < 2:
        return {}
    # The best one is chosen by its figures, so that each pair of systems counts as a comparison.
    comparisons = columns * len(having) * (len(having) - 1) // 2
    beaten: set[str] = set()
    level = {best}
    for name in having:
        if name == best:
            continue
        found = figures.compare(best, name, metric, at, comparisons=comparisons, exact=exact)
        if found.count < LEAST_FOR_INTERVAL and not found.exact:
            return {}
        (beaten if outcome_of(found, metric.better) == BETTER else level).add(name)
    if not beaten:
        return {}
    families = {who[name].family for name in level}
    return dict.fromkeys(level, SOLE if len(families) == 1 else SHARED)


def answer(study: Study, records: Sequence[Record], who: Mapping[str, Who]) -> Answer | None:
    """Return the answer of a run; None where the study has no primary metric, or no rival ran.

    Parameters
    ----------
    study : Study
        With the run's settings.
    records : sequence of Record
    who : mapping of str to Who
        The systems that ran, in the order of the plan.
    """
    metrics = {metric.name: metric for metric in study.metrics}
    figures = Figures(records, study.rounds_per_replicate)
    rivals = [name for name in who if name != study.baseline and who[name].role != "oracle"]
    if study.baseline not in who or not rivals:
        return None
    equal: list[str] = []
    found = None
    # Where all systems are equal on the primary metric, the next one decides.
    for name in study.decisive():
        metric = metrics.get(name)
        places = _places(figures, study, name)
        if metric is None or not metric.better or not places:
            continue
        judge = _Judge(study, figures, who, metric, places, rivals)
        if not judge.all:
            continue
        if any(each.outcome != EQUAL for each in judge.all):
            return judge.answer(equal)
        equal.append(name)
        found = found or judge
    return found.answer([]) if found else None


def _places(figures: Figures, study: Study, metric: str) -> dict[str, Mapping[str, Any]]:
    """Return the places of a metric's main figures, by case: those that the study's table shows, else all."""
    by_names: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for at in figures.places(metric):
        by_names.setdefault(tuple(at), []).append(at)
    by_case = by_names.get((study.cases_by,), [])
    if by_case:
        return {str(at[study.cases_by]): at for at in by_case}

    def rivals(names: tuple[str, ...]) -> tuple[int, bool]:
        having = {
            name
            for at in by_names[names]
            if (found := figures.values(metric, at)).get(study.baseline)
            for name in found
        }
        return len(having), not names

    names = max(by_names, key=rivals, default=())
    return {", ".join(f"{name} {value}" for name, value in at.items()): at for at in by_names.get(names, [])}


class _Judge:
    """The comparisons of one run, and the sentences made of them."""

    def __init__(
        self,
        study: Study,
        figures: Figures,
        who: Mapping[str, Who],
        primary: Metric,
        places: Mapping[str, Mapping[str, Any]],
        rivals: Sequence[str],
    ) -> None:
        self.study, self.figures, self.who, self.primary = study, figures, who, primary
        self.places, self.rivals = places, rivals
        self.words = {metric.name: metric.words for metric in study.metrics}
        self.exact = study.exact
        self.unsound = self._unsound()
        count = len(rivals) * len(places)
        self.all = [
            self._compare(system, study.baseline, primary, case, at, count)
            for case, at in places.items()
            for system in rivals
        ]
        self.all = [each for each in self.all if each.found.count]

    def _compare(
        self, system: str, versus: str, metric: Metric, case: str, at: Mapping[str, Any], comparisons: int
    ) -> Comparison:
        found = self.figures.compare(system, versus, metric, at, comparisons=comparisons, exact=self.exact)
        return Comparison(system, versus, metric.name, case, found, outcome_of(found, metric.better))

    def _unsound(self) -> dict[str, str]:
        """Return the systems that do what no system of the study may do, and what shows it."""
        found: dict[str, str] = {}
        for metric in self.study.must_be_zero:
            for at in self.figures.places(metric):
                for name, values in self.figures.values(metric, at).items():
                    if any(values.values()):
                        found.setdefault(name, self.words[metric])
        return found

    def answer(self, equal: Sequence[str]) -> Answer:
        """Return the answer, after metrics on which all systems are equal."""
        pairs = max((each.found.count for each in self.all), default=0)
        if pairs < LEAST_FOR_VERDICT and not any(each.found.decided for each in self.all):
            few = "No pair of figures was recorded" if not pairs else f"{pairs} of the {LEAST_FOR_VERDICT} pairs needed"
            sentence = f"No answer yet on {self.primary.words}: {few} ({self._repeat()})."
            return Answer(sentence, (), self.primary.name, self.study.baseline, "", tuple(self.all), pairs)
        best = self._best()
        if not best:
            caveats = self._worse()
            return Answer(
                self._after(equal) + self._nobody(),
                caveats,
                self.primary.name,
                self.study.baseline,
                "",
                tuple(self.all),
                pairs,
            )
        rivals = self._against_strongest(best)
        sentence = self._after(equal) + self._sentence(best, rivals)
        caveats = (*self._others(best), *self._costs(best), *self._turn(best), *self._left_out(best), *self._few(pairs))
        return Answer(sentence, caveats, self.primary.name, self.study.baseline, best, (*self.all, *rivals), pairs)

    def _after(self, equal: Sequence[str]) -> str:
        return f"Equal on {_listed([self.words[name] for name in equal])}. " if equal else ""

    def _repeat(self) -> str:
        return f"--seeds {LEAST_FOR_INTERVAL} gives intervals"

    def _of(self, system: str) -> list[Comparison]:
        return [each for each in self.all if each.system == system]

    def _best(self) -> str:
        """Return the system that beats the baseline in most places net of those where it is worse; empty without."""

        def score(system: str) -> tuple[int, float]:
            mine = self._of(system)
            net = sum(each.outcome == BETTER for each in mine) - sum(each.outcome == WORSE for each in mine)
            logs = [abs(math.log(each.found.centre)) * (1 if each.outcome == BETTER else -1) for each in mine
                    if each.outcome in (BETTER, WORSE) and 0 < each.found.centre < math.inf]  # fmt: skip
            return net, sum(logs)

        able = [name for name in self.rivals if name not in self.unsound and score(name)[0] > 0]
        # A part of other systems is the answer only where nothing else competes.
        able = [name for name in able if self.who[name].role != "mechanism"] or able
        return max(able, key=score, default="")

    def _nobody(self) -> str:
        outcomes = [each.outcome for each in self.all]
        base, metric = self.study.baseline, self.primary.words
        if all(each == UNDECIDED for each in outcomes):
            few = max(each.found.count for each in self.all) < LEAST_FOR_INTERVAL
            how = self._repeat() if few else "more seeds narrow the intervals"
            return f"Undecided: no system differs from {base} on {metric} by more than these runs vary ({how})."
        if all(each == EQUAL for each in outcomes):
            return f"All systems equal {base} on {metric}."
        unsettled = [each for each in self.all if each.outcome == UNDECIDED and each.system not in self.unsound]
        if not unsettled:
            return f"No system beats {base} on {metric}."
        text = f"No system is shown to beat {base} on {metric}"
        # The one that may yet turn out better by most.
        ahead = max(unsettled, key=self._lead)
        if self._lead(ahead) <= 0:
            return f"{text}."
        where = f", {ahead.case}" if ahead.case else ""
        return f"{text}; undecided: {ahead.system}{where}, {_amount([ahead.found.centre])} ({_range(ahead.found)})."

    def _lead(self, each: Comparison) -> float:
        """Return by how much the system is better in the middle, as a logarithm; below zero where it is worse."""
        if math.isnan(each.found.centre):
            return -math.inf
        centre = each.found.centre
        # A loss beside a baseline of zero has a ratio of minus infinity.
        lead = -math.inf if centre <= 0 else math.log(centre)
        return lead if self.primary.better == "higher" else -lead

    def _undecided(self) -> list[str]:
        """Name the systems of which it is undecided whether they are better, where they are so in the middle."""
        ahead = [each for each in self.all if each.outcome == UNDECIDED and self._lead(each) > 0]
        found = sorted(ahead, key=self._lead, reverse=True)
        names = list(dict.fromkeys(each.system for each in found if each.system not in self.unsound))
        few = max((each.found.count for each in self.all), default=0) < LEAST_FOR_INTERVAL
        how = self._repeat() if few else "more seeds narrow the intervals"
        return [f"Ahead by less than these runs vary: {_listed(names)} ({how})."] if names else []

    def _worse(self) -> tuple[str, ...]:
        worse = sorted({each.system for each in self.all if each.outcome == WORSE})
        mixed = {each.system for each in self.all if each.outcome == BETTER}
        lines = [f"Worse than {self.study.baseline}: {_listed(worse)}."] if worse else []
        if mixed - set(self.unsound):
            lines.append(f"Better in some cases, worse in as many: {_listed(sorted(mixed - set(self.unsound)))}.")
        if any(each.outcome != UNDECIDED for each in self.all):
            lines += self._undecided()
        return (*lines, *self._left_out(""))

    def _left_out(self, best: str) -> list[str]:
        """Name the systems that would be better and are unsound."""
        lines = []
        for name, metric in self.unsound.items():
            if name != best and any(each.outcome == BETTER for each in self._of(name)):
                lines.append(f"{name} is left out: its {metric} are not zero.")
        return lines

    def _sentence(self, best: str, rivals: Sequence[Comparison]) -> str:
        mine = self._of(best)
        better = [each for each in mine if each.outcome == BETTER]
        text = f"{best} has {self._gain(better, self.study.baseline)}"
        if len(self.places) > 1:
            text += f" in {len(better)} of {len(mine)} cases"
            worse = [each.case for each in mine if each.outcome == WORSE]
            if worse:
                text += f" (worse: {_listed(worse)})"
        if not rivals:
            return f"{text}."
        outcomes = {outcome: [each for each in rivals if each.outcome == outcome] for outcome in (BETTER, WORSE)}
        names = list(dict.fromkeys(each.versus for each in rivals))
        name = names[0] if len(names) == 1 else "the strongest rival of each case"
        if len(rivals) == 1:
            each = rivals[0]
            if each.outcome in (BETTER, WORSE):
                return f"{text}, and {self._gain([each], f'the strongest rival, {name}')}."
            return f"{text}; against the strongest rival, {name}, {each.outcome}."
        return (
            f"{text}; against {name} better in {len(outcomes[BETTER])}, worse in {len(outcomes[WORSE])}, undecided or "
            f"equal in {len(rivals) - len(outcomes[BETTER]) - len(outcomes[WORSE])} of {len(rivals)}."
        )

    def _gain(self, comparisons: Sequence[Comparison], versus: str = "") -> str:
        """Return by how much, from the least to the most of several cases, or with the interval of one."""
        metric = self.words[comparisons[0].metric]
        if len(comparisons) == 1:
            found = comparisons[0].found
            spread = "" if found.exact or found.least == found.most else f" ({_range(found)})"
            return _amount([found.centre], metric, versus) + spread
        return _amount(sorted(each.found.centre for each in comparisons), metric, versus)

    def _against_strongest(self, best: str) -> list[Comparison]:
        """Compare the best system with the strongest of other ideas, place by place."""
        found = []
        for case, at in self.places.items():
            values = self.figures.values(self.primary.name, at)
            others = {
                name: values[name]
                for name in self.rivals
                if values.get(name)
                and name not in self.unsound
                and self.who[name].family != self.who[best].family
                and self.who[name].role != "mechanism"
            }
            strongest = effects.strongest(others, self.primary.better)
            if strongest is not None and values.get(best):
                found.append(self._compare(best, strongest, self.primary, case, at, len(self.places)))
        return found

    def _others(self, best: str) -> list[str]:
        """Name the other systems that beat the baseline, where there is one place to beat it in."""
        if len(self.places) > 1:
            return []
        others = [
            each
            for each in self.all
            if each.outcome == BETTER and each.system != best and each.system not in self.unsound
        ]
        if not others:
            return []
        named = [f"{each.system} ({_amount([each.found.centre])})" for each in others]
        return [f"Also better than {self.study.baseline}: {_listed(named)}."]

    def _costs(self, best: str) -> list[str]:
        """Name the secondary metrics on which the best system is worse or better than the baseline."""
        metrics = {metric.name: metric for metric in self.study.metrics}
        said = []
        for name in self.study.secondary:
            metric = metrics[name]
            if name == self.primary.name:
                continue
            found = [
                self._compare(best, self.study.baseline, metric, case, at, len(self.study.secondary) * len(self.places))
                for case, at in self.places.items()
                if metric.better
            ]
            worse = [each for each in found if each.outcome == WORSE]
            better = [each for each in found if each.outcome == BETTER]
            if worse:
                where = f" in {len(worse)} of {len(found)} cases" if len(found) > 1 else ""
                said.append(f"{self._gain(worse)}{where}")
            elif better and len(better) == len(found):
                said.append(self._gain(better))
        return [f"At the same time, {best} has {'; '.join(said)}."] if said else []

    def _turn(self, best: str) -> list[str]:
        """Say from where on a sweep of one number the best system is better."""
        sweeps: dict[str, list[tuple[float, Mapping[str, Any]]]] = {}
        for at in self.figures.places(self.primary.name):
            if len(at) == 1 and self.study.cases_by not in at:
                (name, value), *_ = at.items()
                if isinstance(value, int | float):
                    sweeps.setdefault(name, []).append((float(value), at))
        lines = []
        for name, found in sweeps.items():
            if len(found) < 3:
                continue
            outcomes = [
                (value, self._compare(best, self.study.baseline, self.primary, "", at, len(found)).outcome)
                for value, at in sorted(found, key=lambda each: each[0])
            ]
            kept = {outcome: [value for value, each in outcomes if each == outcome] for outcome in (BETTER, WORSE)}
            if kept[BETTER] and len(kept[BETTER]) < len(outcomes):
                shown = _listed([f"{value:g}" for value in kept[BETTER]])
                worse = f", worse at {_listed([f'{value:g}' for value in kept[WORSE]])}" if kept[WORSE] else ""
                lines.append(
                    f"Along {name.replace('_', ' ')} it is better at {shown}{worse}, elsewhere undecided or equal."
                )
            elif kept[BETTER]:
                lines.append(
                    f"It is better at every {name.replace('_', ' ')} tried, {outcomes[0][0]:g} to {outcomes[-1][0]:g}."
                )
        return lines

    def _few(self, pairs: int) -> list[str]:
        varying = [each.found for each in self.all if each.found.least != each.found.most]
        if pairs >= LEAST_FOR_INTERVAL or not varying:
            return []
        return [f"{pairs} pairs carry no 95 % interval; {self._repeat()}."]


def _amount(ratios: Sequence[float], metric: str = "", versus: str = "") -> str:
    """Write one ratio, or the least and the most of several, as differences in percent or as multiples.

    Parameters
    ----------
    ratios : sequence of float
        Ascending.
    metric, versus : str
        What the metric is called, and the system of the comparison; both may be left out.

    Examples
    --------
    >>> _amount([1.083], "capacity", "b"), _amount([0.31], "time", "b"), _amount([0.4, 0.7], "time", "b")
    ('8.3 % more capacity than b', '0.31 times the time of b', '0.4 to 0.7 times the time of b')
    >>> _amount([0.9, 0.95]), _amount([0.0], "losses", "b")
    ('5 to 10 % less', 'no losses, unlike b')
    >>> _amount([math.inf], "savings", "b")
    'savings, of which b has none'
    """
    least, most = ratios[0], ratios[-1]
    if math.isinf(least) and metric:
        return metric + (f", of which {versus} has none" if versus else "")
    if math.isinf(most):
        return " ".join(filter(None, ["infinitely more", metric, f"than {versus}" if versus else ""]))
    if most == 0:
        return f"no {metric}{f', unlike {versus}' if versus else ''}" if metric else "none"
    if least > 0.5 and most < 2 and (least > 1 or most < 1):
        ends = sorted(abs(each - 1) * 100 for each in {least, most})
        text = f"{' to '.join(f'{end:.2g}' for end in ends)} % {'more' if least > 1 else 'less'}"
        return " ".join(filter(None, [text, metric, f"than {versus}" if versus else ""]))
    text = f"{' to '.join(f'{each:.3g}' for each in sorted({least, most}))} times"
    return text + (f" the {metric}" if metric else "") + (f" of {versus}" if versus else "")


def _range(found: Effect) -> str:
    if found.count < LEAST_FOR_INTERVAL:
        return f"{_percent(found.least)} to {_percent(found.most)} in {found.count} pairs"
    return f"{_percent(found.low)} to {_percent(found.high)} at 95 % over {found.count} pairs"


def _percent(ratio: float) -> str:
    if 0.5 < ratio < 2:
        return f"{(ratio - 1) * 100:+.2g} %"
    return f"{ratio:.3g} times"


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else list(words))
