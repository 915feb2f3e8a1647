"""Study ``threshold-checkers``."""

from __future__ import annotations

import dataclasses

import pytest

from wavetank.errors import DataUnavailableError
from wavetank.ledger import catalog
from wavetank.protocols.threshold.answers import Answer
from wavetank.protocols.threshold.counterexample import Counterexample
from wavetank.protocols.threshold.smt import SmtReachability
from wavetank.protocols.threshold.study import SUITES, ThresholdCheckers, published_sheet
from wavetank.workloads import datasets

TINY = ThresholdCheckers(automata=3, seconds=2.0, largest_parameter=3, states=500)


def figures(study: ThresholdCheckers, system: object, seed: int = 0) -> dict[str, float]:
    return {name: value for name, value, _ in study.measure(system, seed).rows}


@pytest.mark.parametrize("name", catalog.built_in().plain_run(ThresholdCheckers.name))
def test_no_system_is_wrong_on_drawn_automata(name: str) -> None:
    found = figures(TINY, catalog.built_in().systems[name].build())
    assert found["wrong_verdicts"] == 0
    assert 0 <= found["solved_share"] <= 1
    assert found["slowest_file_s"] >= found["file_s"] > 0


@dataclasses.dataclass(frozen=True)
class Liar:
    """Says the same of everything."""

    outcome: str

    def decide(self, system: object, deadline: object) -> Answer:
        run = Counterexample({"N": 1, "T": 1, "F": 0}, {}, ()) if self.outcome == "violated" else None
        return Answer(self.outcome, run=run)  # type: ignore[arg-type]


def test_a_system_that_calls_all_safe_is_found_out() -> None:
    assert figures(TINY, Liar("holds"))["wrong_verdicts"] > 0


def test_a_system_without_an_answer_is_not_wrong_but_solves_nothing() -> None:
    found = figures(TINY, Liar("undecided"))
    assert (found["wrong_verdicts"], found["solved_share"]) == (0, 0)
    assert found["file_s"] >= TINY.seconds


def test_equal_seeds_draw_equal_automata() -> None:
    first, again, other = ([model.automaton for model in TINY.models(seed)] for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_published_files_are_judged_by_the_published_sheet(models) -> None:
    study = ThresholdCheckers(suite="red-belly", seconds=20.0, states=200)
    study.check()
    assert list(study.data()) == ["threshold-automata"]
    found = figures(study, SmtReachability())
    assert (found["solved_share"], found["wrong_verdicts"], found["solved_to_best_published"]) == (1, 0, 1)
    assert found["time_to_published"] > 0


def test_the_sheet_holds_seconds_and_gaps(models) -> None:
    sheet = published_sheet()
    assert sheet["isola18/handcoded", "strb.ta"].seconds["taco_smt_z3_s"] == 0.06
    assert sheet["random19", "n-rabc.ta"].verdict == "unsafe"
    missing = sheet["isola18/handcoded", "cc.ta"].seconds["taco_zcs_z3_s"]
    assert missing != missing
    assert {suite for suite, _ in sheet} <= set(SUITES.values())


def test_without_the_files_the_study_says_where_to_get_them(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("WAVETANK_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(DataUnavailableError):
        ThresholdCheckers(suite="random19").check()


@pytest.fixture(scope="module")
def models() -> object:
    """Skip where the published files are not on this machine."""
    try:
        return datasets.find("threshold-automata")
    except DataUnavailableError as error:
        pytest.skip(error.problem)
