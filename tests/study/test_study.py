from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
from wavetank_toys.studies import ToyNoise
from wavetank_toys.systems import Plain, Shifted

from wavetank.errors import BadValueError, WavetankError
from wavetank.study.study import Measurements, Metric, Study, Trial, build_study, settings_of, turned


@pytest.mark.parametrize(("kind", "better"), [("guessed", "lower"), ("simulated", "smaller")])
def test_a_metric_that_is_ill_defined_is_refused(kind: str, better: str) -> None:
    with pytest.raises(BadValueError) as caught:
        Metric("m", kind=kind, better=better)
    assert str(caught.value) == f"The metric 'm' is ill defined.\n  given: ({kind!r}, {better!r})"


def test_measurements_keep_their_places() -> None:
    found = Measurements({"a": 1})
    found.put("b", 2, load=3)
    assert found.rows == [("a", 1.0, {}), ("b", 2.0, {"load": 3})]


def test_records_carry_the_unit_and_kind_of_their_metric() -> None:
    (value, scatter, *parts) = ToyNoise().run(Trial(systems=("toy-plain",), seed=2), {"toy-plain": Plain()})
    assert (value.study, value.system, value.seed, value.unit, value.kind) == (
        "toy-noise",
        "toy-plain",
        2,
        "s",
        "simulated",
    )
    assert value.value == pytest.approx(scatter.value + 0.1)
    assert [part.at for part in parts] == [{"part": 1}, {"part": 2}]


def test_a_figure_that_is_no_metric_is_refused() -> None:
    with pytest.raises(WavetankError) as caught:
        ToyNoise().stamp("toy-plain", 0, Measurements({"speed": 1}))
    assert str(caught.value) == "The study 'toy-noise' measured 'speed', which is not among its metrics."


def test_every_system_runs_once_before_the_next_seed() -> None:
    keys = [trial.key for trial in ToyNoise().trials(("a", "b"), (0, 7))]
    assert keys == ["a#0", "b#0", "a#7", "b#7"]


def test_where_systems_take_turns_another_one_comes_first_under_each_seed() -> None:
    class Turning(ToyNoise):
        takes_turns = True

    keys = [trial.key for trial in Turning().trials(("a", "b", "c"), (0, 7, 8, 9))]
    firsts = [keys[place] for place in range(0, 12, 3)]
    assert firsts == ["a#0", "b#7", "c#8", "a#9"]
    assert sorted(keys) == sorted(f"{system}#{seed}" for system in "abc" for seed in (0, 7, 8, 9))
    assert Turning().trials((), (0, 1)) == []
    assert turned(("a", "b", "c"), 2) == ("c", "a", "b")


def test_settings_are_the_fields_and_build_back() -> None:
    study = build_study(ToyNoise, {"offset_s": "20 ms", "parts": "3,4"})
    assert settings_of(study) == {
        "offset_s": 0.02,
        "mode": "calm",
        "parts": (3, 4),
        "cap": "auto",
        "remark": "",
    }
    assert build_study(ToyNoise, settings_of(study)) == study


def test_a_wrong_setting_names_its_study() -> None:
    with pytest.raises(BadValueError) as caught:
        build_study(ToyNoise, {"offset": 1})
    assert str(caught.value) == (
        "There is no setting named 'offset'.\n  allowed: cap, mode, offset_s, parts, remark\n  nearest: offset_s\n"
        "  where: study toy-noise\n  next: wavetank show toy-noise"
    )


def test_a_study_that_does_not_measure_says_so() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Empty(Study):
        name: ClassVar[str] = "empty"

    with pytest.raises(WavetankError, match="does not say how to measure"):
        Empty().measure(None, 0)


def test_toys_see_the_same_draw_under_the_same_seed() -> None:
    study = ToyNoise()
    plain, shifted = (study.measure(toy, 3).rows[0][1] for toy in (Plain(), Shifted(share=0.25)))
    assert shifted == pytest.approx(0.75 * plain)
