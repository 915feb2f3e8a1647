from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path

import pytest

import wavetank
from wavetank.errors import BadValueError
from wavetank.run.comparison import Comparison
from wavetank.run.difference import _effect, difference, in_words


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Comparison]:
    def make(study: str = "toy-noise", **more: object) -> Comparison:
        given = {"systems": ["toy-plain", "toy-shifted"], "seeds": 3, **more}
        return wavetank.compare(study, out=tmp_path, on="here", **given)  # type: ignore[arg-type]

    return make


def test_equal_runs_do_not_differ(run: Callable[..., Comparison]) -> None:
    found = difference(run(), run())
    assert found.settings == ()
    assert {each.outcome for each in found.figures if each.metric == "value_s"} == {"equal"}


def test_settings_parameters_and_seeds_that_differ_are_named(run: Callable[..., Comparison]) -> None:
    before = run()
    after = run(offset_s=0.2, seeds=4, parameters={"toy-shifted": {"share": 0.25}})
    assert set(difference(before, after).settings) == {
        ("offset_s", "0.1", "0.2"), ("seeds", "3", "4"), ("toy-shifted.share", "none", "0.25"),
    }  # fmt: skip


def test_figures_of_equal_seeds_are_paired(run: Callable[..., Comparison]) -> None:
    """The draws differ widely between seeds; what the parameter did to each of them is seen all the same."""
    found = difference(run(), run(parameters={"toy-shifted": {"share": 0.25}}))
    (worse,) = [each for each in found.figures if (each.system, each.metric) == ("toy-shifted", "value_s")]
    assert worse.found.centre == pytest.approx(1.5)
    assert worse.outcome == "worse"
    assert in_words(worse).endswith("(x1.50, worse)")


def test_systems_of_one_run_only_are_named(run: Callable[..., Comparison]) -> None:
    found = difference(run(), run(systems=["toy-plain", "toy-slow"]))
    assert (found.only_before, found.only_after) == (("toy-shifted",), ("toy-slow",))
    assert {each.system for each in found.figures} == {"toy-plain"}


def test_two_studies_are_refused(run: Callable[..., Comparison]) -> None:
    with pytest.raises(BadValueError, match="one study"):
        difference(run(), run("toy-timing", seeds=1))


def test_the_json_has_the_documented_keys(run: Callable[..., Comparison]) -> None:
    found = difference(run(), run()).as_json()
    assert list(found) == ["settings", "only_before", "only_after", "figures"]
    assert list(found["figures"][0]) == [
        "system", "metric", "place", "unit", "before", "after", "ratio", "low", "high", "outcome",
    ]  # fmt: skip


def fake(rounds: int = 1, exact: bool = False, **values: dict[int, float]) -> Comparison:
    study = types.SimpleNamespace(rounds_per_replicate=rounds, exact=exact)
    figures = types.SimpleNamespace(values=lambda metric, at: values)
    return types.SimpleNamespace(study=study, figures=figures)  # type: ignore[return-value]


def test_seeds_are_matched_by_number_and_processes_by_order() -> None:
    before, after = fake(a={0: 1.0, 1: 2.0, 2: 4.0}), fake(a={1: 4.0, 2: 8.0, 3: 100.0})
    simulated = _effect(before, after, "a", "m", {}, paired=True)
    assert (simulated.count, simulated.centre) == (2, 2.0)
    measured = _effect(before, fake(a={7: 2.0, 8: 4.0, 9: 8.0}), "a", "m", {}, paired=False)
    assert (measured.count, measured.centre) == (3, 2.0)


def test_one_run_is_enough_for_what_is_exact_and_never_for_what_is_measured() -> None:
    before, after = fake(exact=True, a={0: 1.0}), fake(exact=True, a={0: 2.0})
    assert _effect(before, after, "a", "m", {}, paired=True).exact
    assert not _effect(before, after, "a", "m", {}, paired=False).decided
