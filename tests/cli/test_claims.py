from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wavetank.ledger import claims
from wavetank.run.comparison import compare, keep_as_evidence

Call = Callable[..., Any]


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Evidence that the first claim is reached and the second is not."""
    root = tmp_path_factory.mktemp("evidence")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims, "evidence_folder", lambda: root)
        for mode in ("calm", "rough"):
            result = compare("toy-noise", on="here", out=tmp_path_factory.mktemp("runs"), mode=mode)
            keep_as_evidence(result, mode)
    return root


@pytest.fixture
def kept(evidence: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "evidence_folder", lambda: evidence)


def test_the_ledger_tells_claim_figures_verdict_and_evidence(call: Call, kept: None) -> None:
    told = call("claims", "toy-shifted")
    assert told.code == 0
    assert told.out == (
        "toy-shifted\n"
        "  reached           halves the value\n"
        "                    value_s, ratio to toy-plain: paper 0.500; ours 0.500 (the\n"
        "                    same in 4 runs)\n"
        "                    study toy-noise --set mode=calm, in evidence/toy-noise/calm\n"
        "                    note: Paired draws; the source compares means of unpaired\n"
        "                    ones.\n"
        "  short of it       keeps the value over one second\n"
        "                    value_s: goal at least 1; ours 0.265 (0.112 to 0.537 in 4\n"
        "                    runs)\n"
        "                    study toy-noise --set mode=rough, in\n"
        "                    evidence/toy-noise/rough\n"
        "  not run           keeps the value under the middle of what it scatters around\n"
        "                    scatter: goal at most 0.500\n"
        "                    study toy-noise --set mode=odd\n"
        "\n"
        "3 claims: 1 reached, 1 short of it, 1 not run\n"
    )


def test_check_speaks_for_the_ledger(call: Call, kept: None) -> None:
    assert call("claims", "toy-shifted", "--check").code == 1


def test_json_has_the_documented_keys(call: Call, kept: None) -> None:
    told = call("claims", "toy-shifted", "--json")
    rows = json.loads(told.out)
    assert [row["verdict"] for row in rows] == ["reached", "short of it", "not run"]
    assert {tuple(row) for row in rows} == {
        (
            "system", "says", "study", "metric", "versus", "basis", "level", "figure", "at_least", "at_most",
            "measured", "low", "high", "least", "most", "count", "exact", "kind", "verdict", "machine", "note",
            "evidence", "history", "stale",
        )
    }  # fmt: skip


def test_a_system_without_claims_says_so(call: Call) -> None:
    assert call("claims", "toy-plain") == (0, "", "No claim is registered for toy-plain.\n")
    assert call("claims", "toy-plain", "--check").code == 0
    assert json.loads(call("claims", "toy-plain", "--json").out) == []


def test_the_whole_ledger_is_everybodys(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    found = claims.ledger()
    # To judge all claims takes seconds; what is tested here is how they are shown.
    monkeypatch.setattr(claims, "ledger", lambda names=(): found)
    for arguments in ((), ("--full",)):
        told = call("claims", *arguments)
        assert (told.code, told.err) == (0, "")
        assert ("toy-shifted\n" in told.out) == bool(arguments)
        assert re.search(r"^\d+ claims: \d+ reached, ", told.out, re.MULTILINE)
        # Only a path may be too long to wrap, wherever the checkout lies.
        assert [line for line in told.out.splitlines() if len(line) > 80 and "/" not in line.split()[0]] == []


def test_a_fresh_run_is_judged_under_the_claims_conditions(call: Call, here: Path) -> None:
    told = call("claims", "toy-shifted", "--run", "--on", "here", "--check", "--json")
    rows = json.loads(told.out)
    assert told.code == 1
    assert [row["verdict"] for row in rows] == ["reached", "short of it", "undecided"]
    for row, mode in zip(rows, ("calm", "rough", "odd"), strict=True):
        (folder,) = row["evidence"]
        assert json.loads((here / folder / "run.json").read_text())["settings"]["mode"] == mode


def test_a_wrong_system_comes_with_the_nearest(call: Call) -> None:
    for more in ([], ["--run"]):
        told = call("claims", "toy-shiftd", *more)
        assert told.code == 3
        assert "\n  nearest: toy-shifted\n" in told.err
