from __future__ import annotations

import json
import math
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from wavetank.errors import BadFileError, UnknownNameError
from wavetank.ledger import catalog, claims
from wavetank.ledger.catalog import Claim
from wavetank.ledger.claims import Finding, RunFigures, findings_of_run, judge, ledger
from wavetank.ledger.verdicts import NOT_RUN, REACHED, SHORT, UNDECIDED
from wavetank.study.records import Record, write_parquet
from wavetank.study.study import Metric


def records(ours: Sequence[float], theirs: Sequence[float] = (), kind: str = "simulated", **at: Any) -> list[Record]:
    """Return one figure per seed."""
    return [
        Record("s", system, seed, "m", value, "", kind, dict(at))
        for system, values in (("a", ours), ("b", theirs))
        for seed, value in enumerate(values)
    ]


def run(found: Sequence[Record], **more: Any) -> RunFigures:
    given = {"study": "toy-noise", "settings": {}, "systems": ("a", "b"), "given": tuple(found)}
    return RunFigures(**{**given, **more})


def claim(**more: Any) -> Claim:
    return Claim(**{"system": "a", "says": "it is better", "study": "toy-noise", "metric": "m", **more})


def test_a_comparison_is_judged_pair_by_pair() -> None:
    shared = (1.0, 10.0, 100.0)
    found = judge(claim(versus="b", better="lower", paper=0.5), [run(records([0.5 * each for each in shared], shared))])
    assert (found.verdict, found.found.centre, found.found.count) == (REACHED, 0.5, 3)


def test_an_absolute_figure_is_judged_by_its_goal() -> None:
    assert judge(claim(at_least=5), [run(records((6.0, 6.1, 6.2)))]).verdict == REACHED
    assert judge(claim(at_least=5), [run(records((4.0, 4.1, 4.2)))]).verdict == SHORT
    assert judge(claim(versus="b", at_least=2), [run(records((4.0, 4.0, 4.0), (2.0, 2.0, 2.0)))]).verdict == REACHED


def test_two_figures_decide_nothing() -> None:
    found = judge(claim(at_least=5), [run(records((6.0, 6.1)))])
    assert (found.verdict, found.found.least, found.found.most) == (UNDECIDED, 6.0, 6.1)


def test_a_claim_without_figures_was_not_run() -> None:
    for judged in (
        judge(claim(versus="b"), [run(records((1.0, 1.0)), systems=("a",))]),
        judge(claim(at_least=1, at={"load": 2}), [run(records((1.0, 1.0)))]),
        judge(claim(at_least=1), [run(records((1.0,)), tuned=frozenset("a"))]),
        judge(claim(at_least=1, where={"mode": "x"}), [run(records((1.0,)))]),
        judge(claim(at_least=1), []),
    ):
        assert judged.verdict == NOT_RUN
        assert judged.evidence == ()
        assert math.isnan(judged.found.centre)


def test_a_claim_is_about_the_records_at_its_place_and_numbers_compare_as_numbers() -> None:
    mixed = run(records((9.0, 9.0, 9.0), load=1.0) + records((1.0, 1.0, 1.0), load=2))
    assert judge(claim(at_least=5, at={"load": 1}), [mixed]).verdict == REACHED
    assert judge(claim(at_least=5, at={"load": 2.0}), [mixed]).verdict == SHORT


def test_rounds_of_one_process_are_one_figure() -> None:
    rounds = run(records((9.0, 9.1, 9.2), kind="measured"), rounds=3)
    assert judge(claim(at_least=5), [rounds]).verdict == UNDECIDED
    processes = run(records((9.0, 9.1, 9.2) * 3, kind="measured"), rounds=3)
    found = judge(claim(at_least=5), [processes])
    assert (found.verdict, found.found.count) == (REACHED, 3)


def test_measured_runs_add_up_and_none_is_taken_out() -> None:
    first = run(records((9.0, 9.0, 9.1), kind="measured"), label="one", started="1")
    second = run(records((1.0, 1.1, 1.0), kind="measured"), label="two", started="2")
    found = judge(claim(at_least=5), [first, second])
    assert (found.verdict, found.found.count, found.evidence) == (UNDECIDED, 6, ("one", "two"))
    assert found.history == (("1", REACHED), ("2", SHORT))


def test_a_simulated_seed_run_again_is_the_same_figure() -> None:
    old, new = run(records((1.0, 1.0, 1.0)), started="1"), run(records((9.0, 9.1, 9.2)), started="2")
    found = judge(claim(at_least=5), [old, new])
    assert (found.verdict, found.found.count) == (REACHED, 3)


def test_the_best_is_the_strongest_rival_but_no_oracle_and_no_kin(monkeypatch: pytest.MonkeyPatch) -> None:
    about = {
        "a": ("system", "p"),
        "kin": ("system", "p"),
        "knows": ("oracle", ""),
        "b": ("rival", ""),
        "c": ("peer", ""),
    }
    entries = {name: types.SimpleNamespace(role=role, paper=paper) for name, (role, paper) in about.items()}
    known = types.SimpleNamespace(systems=entries, studies=catalog.everything().studies)
    monkeypatch.setattr(catalog, "everything", lambda: known)
    values = {"a": 5.0, "kin": 9.0, "knows": 9.0, "b": 2.0, "c": 4.0}
    found = [
        Record("s", name, seed, "m", value, "", "measured", {}) for name, value in values.items() for seed in range(3)
    ]
    judged = judge(claim(versus="best", at_least=1), [run(found, systems=tuple(values))])
    assert (judged.versus, judged.found.centre) == ("c", 1.25)


def test_a_rival_that_was_changed_may_be_the_best_so_that_nothing_is_decided() -> None:
    found = records((1.0, 1.0, 1.0), (2.0, 2.0, 2.0))
    best = claim(versus="best", better="lower")
    assert run(found).concerns(best)
    assert not run(found, tuned=frozenset("b")).concerns(best)
    assert not run(found, systems=("a", "b", "c"), tuned=frozenset("c")).concerns(best)
    # Against one rival, changes of others count for nothing.
    assert run(found, systems=("a", "b", "c"), tuned=frozenset("c")).concerns(claim(versus="b"))


def test_a_run_without_the_systems_that_a_figure_is_derived_from_decides_nothing() -> None:
    found = records((1.0, 1.0, 1.0), (2.0, 2.0, 2.0))
    assert run(found).concerns(claim(at_least=1, beside=("b",)))
    assert not run(found).concerns(claim(at_least=1, beside=("b", "c")))
    assert run(found, systems=("a", "b", "c")).concerns(claim(at_least=1, beside=("b", "c")))
    assert not run(found, systems=("a", "b", "c"), tuned=frozenset("c")).concerns(claim(at_least=1, beside=("b", "c")))


def test_a_row_has_the_documented_keys_and_plain_json() -> None:
    found = run(records((math.inf,) * 3, (1.0,) * 3), label="here")
    row = judge(claim(versus="b", better="lower", paper=0.5, note="n"), [found]).as_row()
    assert list(row) == [
        "system", "says", "study", "metric", "versus", "basis", "level", "figure", "at_least", "at_most", "measured",
        "low", "high", "least", "most", "count", "exact", "kind", "verdict", "machine", "note", "evidence", "history",
        "stale",
    ]  # fmt: skip
    assert json.loads(json.dumps(row, allow_nan=False))["measured"] == "inf"
    assert judge(claim(), []).as_row()["measured"] is None


def toy_records(ratio: float = 0.5) -> list[Record]:
    return [
        Record("toy-noise", system, seed, "value_s", value, "s", "simulated", {})
        for seed in (0, 1, 2)
        for system, value in (("toy-plain", 1.0), ("toy-shifted", ratio))
    ]


def found(**more: Any) -> list[Finding]:
    given = {"settings": {"mode": "calm"}, "systems": ("toy-plain", "toy-shifted"), **more}
    return findings_of_run(run(toy_records(), **given))


def test_a_run_decides_the_claims_of_its_systems_under_its_settings() -> None:
    (finding,) = found()
    assert (finding.claim.says, finding.verdict) == ("halves the value", REACHED)


def test_a_run_decides_nothing_about_absent_rivals_other_studies_or_other_settings() -> None:
    assert found(systems=("toy-shifted",)) == []
    assert found(study="toy-timing") == []
    assert found(settings={"mode": "none of them"}) == []


def test_a_system_with_other_parameters_is_not_the_one_the_claim_is_about() -> None:
    assert found(tuned=frozenset({"toy-shifted"})) == []
    assert found(tuned=frozenset({"toy-plain"})) == []


@pytest.fixture
def evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(claims, "evidence_folder", lambda: tmp_path)
    return tmp_path


def keep(root: Path, label: str, ratio: float, started: str, **more: Any) -> Path:
    folder = root / "toy-noise" / label
    folder.mkdir(parents=True)
    about = {
        "study": "toy-noise", "settings": {"mode": "calm"}, "systems": ["toy-plain", "toy-shifted"], "parameters": {},
        "started": started, **more,
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(about))
    write_parquet(toy_records(ratio), folder / "records.parquet")
    return folder


def test_the_ledger_without_evidence_has_run_nothing(evidence: Path) -> None:
    assert {finding.verdict for finding in ledger(["toy-shifted"])} == {NOT_RUN}
    assert len(ledger()) == sum(len(entry.claims) for entry in catalog.everything())


def test_the_ledger_takes_a_seeds_figure_from_the_newest_run_and_shows_the_older_verdict(evidence: Path) -> None:
    keep(evidence, "a-later", 0.8, "2026-02-02T00:00:00+00:00")
    keep(evidence, "b-earlier", 0.5, "2026-01-01T00:00:00+00:00")
    first, *others = ledger(["toy-shifted"])
    assert (first.verdict, first.found.centre) == (SHORT, 0.8)
    assert first.evidence == ("evidence/toy-noise/b-earlier", "evidence/toy-noise/a-later")
    assert [verdict for _, verdict in first.history] == [REACHED, SHORT]
    assert {finding.verdict for finding in others} == {NOT_RUN}


def test_evidence_under_other_settings_or_parameters_decides_nothing(evidence: Path) -> None:
    keep(evidence, "rough", 0.5, "2026-01-01", settings={"mode": "other"})
    keep(evidence, "tuned", 0.5, "2026-01-02", parameters={"toy-shifted": {"share": 0.1}})
    keep(evidence, "tuned-rival", 0.5, "2026-01-03", parameters={"toy-plain": {"x": 1}})
    assert ledger(["toy-shifted"])[0].verdict == NOT_RUN


def test_measured_figures_have_a_verdict_for_each_machine(evidence: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = [msgspec.structs.replace(record, kind="measured") for record in toy_records()]
    monkeypatch.setattr(claims, "read_parquet", lambda file: measured)
    for label, processor in (("one", "A"), ("two", "B"), ("three", "A")):
        keep(evidence, label, 0.5, f"2026-01-0{len(label)}", machine={"processor": processor, "cores": 2})
    halves = [each for each in ledger(["toy-shifted"]) if each.claim.says == "halves the value"]
    assert [(each.machine, each.found.count) for each in halves] == [("B, 2 cores", 3), ("A, 2 cores", 6)]


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


def test_what_is_measured_is_never_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog.study("toy-noise").load(), "exact", True)
    assert judge(claim(at_least=5), [run(records((6.0,)))]).verdict == REACHED
    assert judge(claim(at_least=5), [run(records((6.0,), kind="measured"))]).verdict == UNDECIDED


def test_one_run_of_a_count_that_chance_decides_is_no_verdict_but_of_what_must_be_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind = catalog.study("toy-noise").load()
    monkeypatch.setattr(kind, "default_seeds", 1)
    assert judge(claim(at_most=5, better="lower"), [run(records((4.0,)))]).verdict == UNDECIDED
    monkeypatch.setattr(kind, "must_be_zero", ("m",))
    assert judge(claim(at_most=0, better="lower"), [run(records((0.0,)))]).verdict == REACHED
    assert judge(claim(at_most=0, better="lower"), [run(records((2.0,)))]).verdict == SHORT
    # How much less than another system's needs runs of both.
    assert judge(claim(versus="b", better="lower"), [run(records((1.0,), (2.0,)))]).verdict == UNDECIDED


def test_a_run_with_a_part_of_the_claimed_cases_decides_nothing() -> None:
    listed = claim(where={"cases": ["one", "two"]})
    assert run((), settings={"cases": ("one", "two", "three")}).concerns(listed)
    assert not run((), settings={"cases": ("one",)}).concerns(listed)


def test_the_strongest_rival_is_that_of_all_runs_together_and_no_part_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    about = {"a": ("system", "p"), "part": ("mechanism", ""), "b": ("rival", ""), "c": ("peer", "")}
    entries = {name: types.SimpleNamespace(role=role, paper=paper) for name, (role, paper) in about.items()}
    known = types.SimpleNamespace(systems=entries, studies=catalog.everything().studies)
    monkeypatch.setattr(catalog, "everything", lambda: known)

    def of(**values: Sequence[float]) -> RunFigures:
        found = [
            Record("s", name, seed, "m", value, "", "measured", {})
            for name, each in values.items()
            for seed, value in enumerate(each)
        ]
        return run(found, systems=tuple(values))

    first = of(a=[1.0] * 4, part=[0.5] * 4, b=[9.0] * 4, c=[6.0] * 4)
    second = of(a=[1.0] * 2, part=[0.5] * 2, b=[1.0] * 2, c=[6.0] * 2)
    # b's six figures have the median 9, though its newest ones are the least.
    assert judge(claim(versus="best", better="lower"), [first, second]).versus == "c"


def test_a_later_run_with_weaker_rivals_alone_does_not_hide_the_strongest(monkeypatch: pytest.MonkeyPatch) -> None:
    about = {"a": ("system", "p"), "b": ("rival", ""), "c": ("rival", "")}
    entries = {name: types.SimpleNamespace(role=role, paper=paper) for name, (role, paper) in about.items()}
    known = types.SimpleNamespace(systems=entries, studies=catalog.everything().studies)
    monkeypatch.setattr(catalog, "everything", lambda: known)

    def of(started: str, **values: Sequence[float]) -> RunFigures:
        found = [
            Record("s", name, seed, "m", value, "", "counted", {})
            for name, each in values.items()
            for seed, value in enumerate(each)
        ]
        return run(found, systems=tuple(values), started=started)

    every = of("1", a=[2.0, 2.1, 2.2], b=[1.0, 1.1, 1.2])
    later = of("2", a=[2.0, 2.1, 2.2], c=[9.0, 9.1, 9.2])
    for runs in ([every, later], [later, every]):
        found = judge(claim(versus="best", better="lower", at_most=1.0), runs)
        assert (found.versus, found.verdict) == ("b", SHORT)


def headline_of(*levels_and_verdicts: tuple[str, str]) -> claims.HeadlineFinding:
    paper = catalog.PaperEntry(name="p", source={}, headlines=(catalog.Headline(name="h", says="it is so"),))
    found = [
        Finding(claim=claim(headline="h", level=level), found=claims.NOTHING, verdict=verdict)
        for level, verdict in levels_and_verdicts
    ]
    return claims.headlines(paper, found)[0]


def test_a_headline_stands_as_its_worst_claim_and_a_proxy_does_not_replicate_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(catalog, "system", lambda name: types.SimpleNamespace(paper="p"))
    assert headline_of(("same", REACHED), ("same", NOT_RUN)).verdict == NOT_RUN
    assert headline_of(("same", NOT_RUN), ("same", UNDECIDED)).verdict == UNDECIDED
    assert headline_of(("same", UNDECIDED), ("same", SHORT)).verdict == SHORT
    assert headline_of(("same", REACHED), ("elsewhere", REACHED)).replicated
    assert not headline_of(("same", REACHED), ("proxy", REACHED)).replicated


def test_more_is_no_better_of_a_metric_without_a_better_side(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [run(records((7.0, 7.1, 7.2)))]
    both = claim(at_least=5, at_most=6, better="higher")
    for better, verdict in (("higher", "exceeds"), ("", SHORT)):
        monkeypatch.setattr(catalog.study("toy-noise").load(), "metrics", (Metric("m", "", better),))
        assert judge(both, found).verdict == verdict


def test_records_that_are_not_those_of_the_run_are_not_read(evidence: Path) -> None:
    folder = keep(evidence, "x", 0.5, "2026-01-01", records_sha256="0" * 64)
    (folder / "records.parquet").write_bytes(b"damaged")
    (wrong,) = claims.verify()
    assert "their checksum differs" in wrong


def test_a_machine_is_its_processor_its_instructions_its_cores_and_its_device() -> None:
    machine = {"processor": "P", "features": ["avx512f"], "cores": 4, "device": "D"}
    assert claims.machine_of({"machine": machine}) == "P, avx512f, 4 cores, D"
    assert claims.machine_of({}) == "? cores"
