"""The committed records: whole, described by today's studies, and judged as they were when their verdicts were kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wavetank.ledger import claims
from wavetank.study.records import Record, write_parquet


def test_every_kept_run_is_whole_and_its_metrics_exist() -> None:
    assert claims.verify() == []


def test_every_verdict_is_the_one_that_was_kept() -> None:
    """After a change of judging, claims or evidence: read the difference, then `wavetank claims --verify --accept`."""
    assert claims.changed(claims.ledger()) == []


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(claims, "evidence_folder", lambda: tmp_path / "evidence")
    folder = tmp_path / "evidence" / "toy-noise" / "one"
    folder.mkdir(parents=True)
    records = [
        Record("toy-noise", system, seed, "value_s", value, "s", "simulated", {})
        for seed in range(3)
        for system, value in (("toy-plain", 1.0), ("toy-shifted", 0.5))
    ]
    write_parquet(records, folder / "records.parquet")
    about = {
        "study": "toy-noise", "settings": {"mode": "calm"}, "systems": ["toy-plain", "toy-shifted"], "parameters": {},
        "started": "2026-01-01", "records_sha256": claims.checksum_of(folder / "records.parquet"),
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(about))
    return folder


def change(folder: Path, **what: object) -> None:
    about = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(
        json.dumps({key: value for key, value in {**about, **what}.items() if value is not None})
    )


def test_a_whole_run_has_nothing_wrong(kept: Path) -> None:
    assert claims.verify() == []


def test_one_changed_figure_is_found(kept: Path) -> None:
    records = list(claims.kept_runs()[0].figures.values())
    rows = [record for by_seed in records for record in by_seed.values()]
    write_parquet([*rows[:-1], Record("toy-noise", "toy-shifted", 2, "value_s", 0.4, "s", "simulated", {})],
                  kept / "records.parquet")  # fmt: skip
    assert claims.verify() == ["evidence/toy-noise/one: the records are not those of the run: their checksum differs."]


@pytest.mark.parametrize(("what", "found"), [
    ({"records_sha256": None}, "run.json has no checksum of the records."),
    ({"systems": ["toy-shifted"]}, "records of toy-plain, which did not run."),
])  # fmt: skip
def test_what_a_run_lacks_is_named(kept: Path, what: dict[str, object], found: str) -> None:
    change(kept, **what)
    assert claims.verify() == [f"evidence/toy-noise/one: {found}"]


@pytest.mark.parametrize(("metric", "kind", "found"), [
    ("value_s", "counted", "value_s was counted and is simulated now."),
])  # fmt: skip
def test_a_figure_that_no_metric_describes_is_named(kept: Path, metric: str, kind: str, found: str) -> None:
    write_parquet([Record("toy-noise", "toy-plain", 0, metric, 1.0, "s", kind, {})], kept / "records.parquet")
    change(kept, records_sha256=claims.checksum_of(kept / "records.parquet"))
    assert claims.verify() == [f"evidence/toy-noise/one: {found}"]


def test_a_changed_verdict_is_named_until_it_is_accepted(kept: Path) -> None:
    before = claims.ledger(["toy-shifted"])
    claims.accept(before)
    assert claims.changed(before) == []
    change(kept, settings={"mode": "rough"})
    (line, *_) = claims.changed(claims.ledger(["toy-shifted"]))
    assert line == "toy-shifted | toy-noise | halves the value: reached before, not run now."
    claims.accept(claims.ledger(["toy-shifted"]))
    assert claims.changed(claims.ledger(["toy-shifted"])) == []
