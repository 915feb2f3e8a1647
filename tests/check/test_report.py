from __future__ import annotations

import dataclasses
import math

import pytest

from wavetank.check.report import Budget, CheckReport, Verdict
from wavetank.cli.commands import kind_of
from wavetank.ledger import catalog

KINDS = catalog.commands("check")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("strb.ta", "threshold"),
        ("aba.TA.gz", "threshold"),
        ("phase.eta", "threshold"),
        ("bcast.tla", "threshold"),
        ("etcd_000.log", "history"),
        ("run.jsonl", "history"),
        ("Http.nuscr", "session"),
        ("raft.toml", "instance"),
    ],
)
def test_a_files_name_shows_its_checker(name: str, kind: str) -> None:
    assert kind_of(name, KINDS, verb="check").name == kind


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_checker_whose_settings_are_explained(kind: str) -> None:
    checker = KINDS[kind].load()
    assert dataclasses.is_dataclass(checker)
    assert callable(checker.check)  # type: ignore[attr-defined]
    for field in dataclasses.fields(checker):
        assert field.metadata["says"]


def test_no_ending_belongs_to_two_kinds() -> None:
    endings = [ending for facts in KINDS.values() for ending in facts.endings]
    assert len(endings) == len(set(endings))


def test_a_report_without_details_is_whole() -> None:
    assert Budget().seconds == 60 and Budget().memory_bytes == 2**31
    verdict = Verdict(name="safe", outcome="holds")
    assert math.isnan(verdict.seconds) and verdict.evidence == "" and verdict.anomalies == ()
    assert CheckReport(subject="x", kind="history", verdicts=(verdict,)).page == ""
