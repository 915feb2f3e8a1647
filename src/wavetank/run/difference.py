"""Two runs of a study beside each other: which settings differ, and by how much the figures do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wavetank import units
from wavetank.errors import BadValueError
from wavetank.run.comparison import Comparison
from wavetank.study.answer import outcome_of
from wavetank.study.effects import Effect, effect, per_replicate, ratio
from wavetank.study.records import canonical_at, json_number


@dataclass(frozen=True)
class Changed:
    """One figure of one system in both runs.

    Attributes
    ----------
    system, metric, place, unit : str
        The place is empty where there is one.
    before, after : float
        Medians over replicates.
    found : Effect
        after / before, paired where the figures of equal seeds belong together (all but measured ones).
    outcome : str
        ``better``, ``worse``, ``equal`` or ``undecided``, empty for a metric that only explains.
    """

    system: str
    metric: str
    place: str
    unit: str
    before: float
    after: float
    found: Effect
    outcome: str


@dataclass(frozen=True)
class Difference:
    """What differs between two runs of one study.

    Attributes
    ----------
    settings : tuple of (str, str, str)
        Name, value before, value after of every setting (or parameter, machine or commit) that differs.
    figures : tuple of Changed
        The figures of the main table, in its order.
    only_before, only_after : tuple of str
        Systems that ran in one of the runs only.
    """

    settings: tuple[tuple[str, str, str], ...]
    figures: tuple[Changed, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the stable shape that ``--json`` prints."""
        return {
            "settings": [list(each) for each in self.settings],
            "only_before": list(self.only_before),
            "only_after": list(self.only_after),
            "figures": [
                {
                    "system": each.system,
                    "metric": each.metric,
                    "place": each.place,
                    "unit": each.unit,
                    "before": json_number(each.before),
                    "after": json_number(each.after),
                    "ratio": json_number(each.found.centre),
                    "low": json_number(each.found.low),
                    "high": json_number(each.found.high),
                    "outcome": each.outcome,
                }
                for each in self.figures
            ],
        }


def difference(before: Comparison, after: Comparison) -> Difference:
    """Return what differs between two runs of one study.

    Parameters
    ----------
    before, after : Comparison

    Raises
    ------
    BadValueError
        If the runs are of two studies.
    """
    if before.plan.study != after.plan.study:
        raise BadValueError(
            "Only runs of one study can be compared.", given=f"{before.plan.study} and {after.plan.study}",
            hint="wavetank compare STUDY makes a run of the other one",
        )  # fmt: skip
    rows = {(row.system, row.metric, canonical_at(row.at)): row for row in after.rows}
    shown = {metric.name: metric for metric in after.study.metrics if metric.table}
    common = [name for name in before.plan.systems if name in after.plan.systems]
    figures = []
    for row in before.rows:
        other = rows.get((row.system, row.metric, canonical_at(row.at)))
        main = not row.at or set(row.at) == {after.study.cases_by}
        if other is None or row.metric not in shown or row.system not in common or not main:
            continue
        metric = shown[row.metric]
        found = _effect(before, after, row.system, row.metric, row.at, paired=metric.kind != "measured")
        place = ", ".join(str(value) for value in row.at.values())
        outcome = outcome_of(found, metric.better) if metric.better else ""
        figures.append(Changed(row.system, row.metric, place, row.unit, row.median, other.median, found, outcome))
    return Difference(
        settings=tuple(_settings(before, after)),
        figures=tuple(figures),
        only_before=tuple(name for name in before.plan.systems if name not in after.plan.systems),
        only_after=tuple(name for name in after.plan.systems if name not in before.plan.systems),
    )


def _effect(before: Comparison, after: Comparison, system: str, metric: str, at: Any, *, paired: bool) -> Effect:
    old = per_replicate(before.figures.values(metric, at).get(system, {}), before.study.rounds_per_replicate)
    new = per_replicate(after.figures.values(metric, at).get(system, {}), after.study.rounds_per_replicate)
    exact = paired and after.study.exact
    # Measured figures of two runs share nothing but their order, so that what both have in common does not cancel.
    pairs = list(zip(old.values(), new.values(), strict=False))
    if paired:
        pairs = [(old[seed], new[seed]) for seed in old if seed in new]
    return effect([ratio(theirs, ours) for ours, theirs in pairs], exact=exact)


def _settings(before: Comparison, after: Comparison) -> list[tuple[str, str, str]]:
    found = []
    for name in {**before.plan.settings, **after.plan.settings}:
        old, new = before.plan.settings.get(name), after.plan.settings.get(name)
        if units.typed(old) != units.typed(new):
            found.append((name, units.typed(old), units.typed(new)))
    if len(before.plan.seeds) != len(after.plan.seeds):
        found.append(("seeds", str(len(before.plan.seeds)), str(len(after.plan.seeds))))
    for system in dict.fromkeys([*before.plan.parameters, *after.plan.parameters]):
        old, new = before.plan.parameters.get(system, {}), after.plan.parameters.get(system, {})
        found += [
            (f"{system}.{name}", units.typed(old.get(name)), units.typed(new.get(name)))
            for name in {**old, **new}
            if old.get(name) != new.get(name)
        ]
    for name in before.plan.own.keys() & after.plan.own.keys():
        old, new = before.plan.own[name], after.plan.own[name]
        found += [
            (f"{name}, {what}", one, other)
            for what, one, other in (("from", old.reference, new.reference), ("code", old.code, new.code))
            if one != other
        ]
    old, new = str(before.about.get("commit", "")), str(after.about.get("commit", ""))
    return [*found, ("commit", old, new)] if old != new else found


def in_words(found: Changed) -> str:
    """Return a change as a sentence would say it, such as ``1.2 s to 0.9 s (x0.75, better)``."""
    unit = f" {found.unit}" if found.unit else ""
    text = f"{units.show(found.before)}{unit} to {units.show(found.after)}{unit}"
    known = f"x{units.show(found.found.centre)}" if found.found.count else ""
    about = ", ".join(filter(None, (known, found.outcome)))
    return text + (f" ({about})" if about else "")
