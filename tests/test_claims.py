from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from wavetank import catalog, claims
from wavetank.catalog import Claim
from wavetank.claims import FAILS, HOLDS, IN_PART, NOT_RUN, UNDECIDED, Finding, findings_of_run, judge, ledger
from wavetank.errors import BadFileError, UnknownNameError
from wavetank.records import Record, write_parquet


def claim(**more: Any) -> Claim:
    return Claim(**{"system": "a", "says": "it is better", "study": "s", "metric": "m", **more})


def records(ours: Sequence[float], theirs: Sequence[float] = (), **at: float) -> list[Record]:
    """Return one figure a seed; two seeds make an interval with exactly these ends."""
    return [
        Record("s", system, seed, "m", value, "", "simulated", dict(at))
        for system, values in (("a", ours), ("b", theirs))
        for seed, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("better", "paper", "ratios", "verdict"),
    [
        ("lower", 0.5, (0.4, 0.5), HOLDS),
        ("lower", 0.5, (0.4, 0.9), HOLDS),
        ("lower", 0.5, (0.6, 0.9), IN_PART),
        ("lower", 0.5, (0.8, 1.2), UNDECIDED),
        ("lower", 0.5, (0.8, 1.0), UNDECIDED),
        ("lower", 0.5, (1.0, 1.0), UNDECIDED),
        ("lower", 0.5, (1.1, 1.2), FAILS),
        ("lower", 0.5, (1.0, 1.2), UNDECIDED),
        ("higher", 2.0, (0.8, 1.0), UNDECIDED),
        ("lower", None, (0.9, 0.99), HOLDS),
        ("lower", None, (1.1, 1.2), FAILS),
        ("higher", 2.0, (2.0, 2.5), HOLDS),
        ("higher", 2.0, (1.1, 2.1), HOLDS),
        ("higher", 2.0, (1.1, 1.9), IN_PART),
        ("higher", 2.0, (0.9, 2.5), UNDECIDED),
        ("higher", 2.0, (0.5, 0.9), FAILS),
        ("higher", None, (1.1, 1.2), HOLDS),
    ],
)
def test_a_comparison_is_judged_by_the_interval_of_its_ratio(
    better: str, paper: float | None, ratios: tuple[float, float], verdict: str
) -> None:
    finding = judge(claim(versus="b", better=better, paper=paper), records(ratios, (1.0, 1.0)))
    assert (finding.low, finding.high) == ratios
    assert finding.verdict == verdict


@pytest.mark.parametrize(
    ("bars", "values", "verdict"),
    [
        ({"at_least": 5}, (5.0, 6.0), HOLDS),
        ({"at_least": 5}, (4.0, 6.0), UNDECIDED),
        ({"at_least": 5}, (3.0, 4.0), FAILS),
        ({"at_most": 5}, (4.0, 5.0), HOLDS),
        ({"at_most": 5}, (4.0, 6.0), UNDECIDED),
        ({"at_most": 5}, (6.0, 7.0), FAILS),
        ({"at_least": 3, "at_most": 5}, (3.0, 5.0), HOLDS),
        ({"at_least": 3, "at_most": 5}, (2.0, 4.0), UNDECIDED),
        ({"at_least": 3, "at_most": 5}, (6.0, 7.0), FAILS),
        ({"paper": 5, "better": "higher"}, (4.0, 5.0), HOLDS),
        ({"paper": 5, "better": "higher"}, (3.0, 4.0), IN_PART),
        ({"paper": 5, "better": "lower"}, (5.0, 6.0), HOLDS),
        ({"paper": 5, "better": "lower"}, (6.0, 7.0), IN_PART),
    ],
)
def test_an_absolute_figure_is_judged_by_its_bar(
    bars: dict[str, Any], values: tuple[float, float], verdict: str
) -> None:
    assert judge(claim(**bars), records(values)).verdict == verdict


def test_a_bar_may_be_put_on_a_ratio() -> None:
    assert judge(claim(versus="b", at_least=2), records((4.0, 6.0), (2.0, 2.0))).verdict == HOLDS


def test_a_claim_without_figures_was_not_run() -> None:
    for found in (
        judge(claim(versus="b"), records((1.0, 1.0)), "evidence/x"),
        judge(claim(at_least=1), records((math.nan, math.nan)), "evidence/x"),
        judge(claim(at_least=1, at={"load": 2}), records((1.0, 1.0)), "evidence/x"),
    ):
        assert found.verdict == NOT_RUN
        assert found.evidence == ""
        assert math.isnan(found.measured)


def test_a_claim_is_about_the_records_at_its_place() -> None:
    mixed = records((9.0, 9.0), load=1) + records((1.0, 1.0), load=2)
    assert judge(claim(at_least=5, at={"load": 1}), mixed).verdict == HOLDS
    assert judge(claim(at_least=5, at={"load": 2}), mixed).verdict == FAILS


def test_a_row_has_the_documented_keys_and_plain_json() -> None:
    row = judge(claim(versus="b", better="lower", paper=0.5, note="n"), records((math.inf,), (1.0,)), "here").as_row()
    assert list(row) == [
        "system",
        "says",
        "study",
        "metric",
        "versus",
        "paper",
        "bar",
        "measured",
        "low",
        "high",
        "verdict",
        "note",
        "evidence",
    ]
    assert json.loads(json.dumps(row, allow_nan=False))["measured"] == "inf"
    assert judge(claim(), []).as_row()["measured"] is None


def test_the_bar_is_what_had_to_be_reached() -> None:
    bars = [judge(claim(**more), []).bar for more in ({"paper": 2}, {"paper": 2, "at_least": 3}, {"at_most": 4}, {})]
    assert bars == [2, 3, 4, None]


def toy_records(ratio: float = 0.5) -> list[Record]:
    return [
        Record("toy-noise", system, seed, "value_s", value, "s", "simulated", {})
        for seed in (0, 1)
        for system, value in (("toy-plain", 1.0), ("toy-shifted", ratio))
    ]


def found(systems: Sequence[str] = ("toy-plain", "toy-shifted"), **more: Any) -> list[Finding]:
    study, settings = more.pop("study", "toy-noise"), more.pop("settings", {"mode": "calm"})
    return findings_of_run(study, settings, systems, toy_records(), **more)


def test_a_run_decides_the_claims_of_its_systems_under_its_settings() -> None:
    (finding,) = found()
    assert (finding.claim.says, finding.verdict) == ("halves the value", HOLDS)


def test_a_run_decides_nothing_about_absent_rivals_other_studies_or_other_settings() -> None:
    assert found(systems=["toy-shifted"]) == []
    assert found(study="toy-timing") == []
    assert found(settings={"mode": "none of them"}) == []


def test_a_system_with_other_parameters_is_not_the_one_the_claim_is_about() -> None:
    assert found(parameters={"toy-shifted": {"share": 0.1}}) == []
    assert found(parameters={"toy-plain": {"x": 1}}) == []
    assert len(found(parameters={"toy-shifted": {}})) == 1


@pytest.fixture
def evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(claims, "evidence_folder", lambda: tmp_path)
    return tmp_path


def keep(root: Path, label: str, ratio: float, started: str, **more: Any) -> Path:
    folder = root / "toy-noise" / label
    folder.mkdir(parents=True)
    about = {"study": "toy-noise", "settings": {"mode": "calm"}, "parameters": {}, "started": started, **more}
    (folder / "run.json").write_text(json.dumps(about))
    write_parquet(toy_records(ratio), folder / "records.parquet")
    return folder


def test_the_ledger_without_evidence_has_run_nothing(evidence: Path) -> None:
    assert {finding.verdict for finding in ledger(["toy-shifted"])} == {NOT_RUN}
    assert len(ledger()) == sum(len(entry.claims) for entry in catalog.everything())


def test_the_ledger_judges_on_the_run_that_was_kept_last(evidence: Path) -> None:
    keep(evidence, "a-later", 0.8, "2026-02-02T00:00:00+00:00")
    keep(evidence, "b-earlier", 0.5, "2026-01-01T00:00:00+00:00")
    first, *others = ledger(["toy-shifted"])
    assert (first.verdict, first.measured, first.evidence) == (IN_PART, 0.8, "evidence/toy-noise/a-later")
    assert {finding.verdict for finding in others} == {NOT_RUN}


def test_evidence_under_other_settings_or_parameters_decides_nothing(evidence: Path) -> None:
    keep(evidence, "rough", 0.5, "2026-01-01", settings={"mode": "other"})
    keep(evidence, "tuned", 0.5, "2026-01-02", parameters={"toy-shifted": {"share": 0.1}})
    keep(evidence, "tuned-rival", 0.5, "2026-01-03", parameters={"toy-plain": {"x": 1}})
    assert ledger(["toy-shifted"])[0].verdict == NOT_RUN


def test_damaged_evidence_is_named(evidence: Path) -> None:
    folder = keep(evidence, "x", 0.5, "2026-01-01")
    (folder / "run.json").write_text("{")
    with pytest.raises(BadFileError, match="A run of the evidence cannot be read") as caught:
        ledger(["toy-shifted"])
    assert caught.value.where == str(folder / "run.json")


def test_the_ledger_of_an_unknown_system_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="toy-shiftd"):
        ledger(["toy-shiftd"])


def test_the_evidence_lies_in_the_checkout_or_the_package() -> None:
    assert claims.evidence_folder().name == "evidence"
