from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from wavetank.check.explore.check import InstanceCheck
from wavetank.check.report import Budget
from wavetank.errors import BadFileError
from wavetank.ledger import catalog

GOOD = """\
[instance]
protocol = "two-phase-commit"
size = 4

[parameters]
missing = 0

[environment]
channels = "set"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "commit.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_an_instance_that_is_right_holds_with_the_known_number_of_states(tmp_path: Path) -> None:
    report = InstanceCheck().check(written(tmp_path, GOOD), Budget())
    assert catalog.commands("check")["instance"].load() is InstanceCheck
    assert [(each.name, each.outcome) for each in report.verdicts] == [("invariant", "holds")]
    assert "288 (all)" in dict(report.facts)["states"]
    assert (report.subject, report.kind, report.page) == ("commit", "instance", "")


def test_an_instance_that_is_wrong_is_shown(tmp_path: Path) -> None:
    report = InstanceCheck(order="depth-first").check(written(tmp_path, GOOD.replace("= 0", "= 1")), Budget())
    (verdict,) = report.verdicts
    assert (verdict.outcome, verdict.by) == ("violated", "depth-first")
    assert max(map(len, verdict.evidence.splitlines())) <= 66
    assert "<svg" in report.page
    assert "http" not in report.page.replace("http://www.w3.org/2000/svg", "")


def test_a_state_explosion_stays_undecided(tmp_path: Path) -> None:
    text = GOOD.replace("size = 4", "size = 12") + "\n[budget]\nstates = 5000\n"
    report = InstanceCheck().check(written(tmp_path, text), Budget())
    assert report.verdicts[0].outcome == "undecided"
    assert "5,000 states" in dict(report.facts)["states"]
    fewer = InstanceCheck(states=50).check(written(tmp_path, GOOD), Budget())
    assert fewer.verdicts[0].outcome == "undecided"
    nothing = InstanceCheck().check(written(tmp_path, GOOD), Budget(seconds=1e-9))
    assert nothing.verdicts[0].outcome == "undecided"


@pytest.mark.parametrize("depth", [33, 900, 3000, 100_000])
@pytest.mark.parametrize("shape", ["lists", "tables", "keys"])
def test_a_file_that_is_nested_too_deeply_is_refused(tmp_path: Path, depth: int, shape: str) -> None:
    deep = {
        "lists": f"command = {'[' * depth}{']' * depth}",
        "tables": f"command = {'{a=' * depth}1{'}' * depth}",
        "keys": "command." + ".".join("a" * min(depth, 5_000)) + " = 1",
    }[shape]
    with pytest.raises(BadFileError, match="nested too deeply"):
        InstanceCheck().check(written(tmp_path, "[instance]\n" + deep + "\n"), Budget())


TIMED = """\
[instance]
protocol = "raft"
size = 2

[clock]
most_delay = 2
"""


def test_a_clock_is_read_from_the_file_and_named_beside_the_verdict(tmp_path: Path) -> None:
    report = InstanceCheck(states=3000).check(written(tmp_path, TIMED), Budget())
    assert report.verdicts[0].outcome == "undecided"
    # Two nodes draw their time-outs once and for all: with time, hardly anything is left to happen in another order.
    stopped = InstanceCheck(states=3000, clock="none").check(written(tmp_path, TIMED), Budget())
    assert dict(stopped.facts)["states"] != dict(report.facts)["states"]
    plain = TIMED.split("[clock]")[0]
    again = InstanceCheck(states=3000, clock="discrete").check(written(tmp_path, plain), Budget())
    assert again.verdicts[0].outcome == "undecided"
    with pytest.raises(BadFileError, match="clock"):
        InstanceCheck().check(written(tmp_path, TIMED.replace("most_delay = 2", "slowest = 2")), Budget())
    with pytest.raises(BadFileError):
        InstanceCheck().check(written(tmp_path, TIMED + "drift = 1.5\n"), Budget())


def test_a_protocol_that_reads_the_time_is_undecided_without_a_clock(tmp_path: Path) -> None:
    asks = 'requests = [{node = 1, command = ["publish", "a", "b"]}]'
    text = f'[instance]\nprotocol = "central-registry"\nsize = 2\n{asks}\n[environment]\ntimeouts = 2\n'
    report = InstanceCheck().check(written(tmp_path, text), Budget())
    (verdict,) = report.verdicts
    assert verdict.outcome == "undecided"
    assert "depends on time" in verdict.says
    assert "in all" not in verdict.says


@pytest.mark.parametrize(("name", "why"), [("ss-leader", "meet in pairs"), ("unison", "programs of others")])
def test_what_cannot_be_explored_is_refused_by_name_with_the_reason(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(BadFileError, match=f"{name} cannot be explored") as caught:
        InstanceCheck().check(written(tmp_path, GOOD.replace("two-phase-commit", name)), Budget())
    assert why in str(caught.value)
    assert "line 2" in str(caught.value)


def test_bounds_are_named_beside_the_verdict(tmp_path: Path) -> None:
    text = GOOD + "drops = 1\n"
    (verdict,) = InstanceCheck().check(written(tmp_path, text), Budget()).verdicts
    assert verdict.outcome == "holds"
    assert "with at most 1 loss" in verdict.says
    assert "in all" not in verdict.says


def test_requests_faults_and_what_must_happen_are_read(tmp_path: Path) -> None:
    text = """\
[instance]
protocol = "raft"
size = 3
eventually = ["answered"]
requests = [{ node = 0, command = ["write", "x", 1] }, { node = 1, command = ["read", "x"], at = 1 }]
[environment]
draws = "fresh"
timeouts = 2
crashes = 2
[[faults]]
kind = "crash"
members = [2]
at = 3.0
[budget]
states = 20000
"""
    report = InstanceCheck().check(written(tmp_path, text), Budget())
    assert [each.name for each in report.verdicts] == ["invariant", "answered"]
    assert "the protocol tolerates 1 of 3" in dict(report.facts)["beyond its promise"]


@pytest.mark.parametrize(
    ("old", "new", "line", "nearest"),
    [
        ('protocol = "two-phase-commit"', 'protocol = "two-phase-comit"', 2, "two-phase-commit"),
        ("size = 4", "sise = 4", 3, "size"),
        ("size = 4", 'size = "many"', 3, None),
        ("missing = 0", "mising = 0", 6, "missing"),
        ("missing = 0", "missing = -1", 6, None),
        ("[environment]", "[enviroment]", 8, "environment"),
        ('channels = "set"', 'chanels = "set"', 9, "channels"),
        ('channels = "set"', 'channels = "sets"', 9, None),
        ('channels = "set"', 'channels = "set"\nduplicates = 1', 10, None),
        ('channels = "set"', 'channels = "set"\n[[faults]]\nkind = "crush"', 11, "crash"),
        ('channels = "set"', 'channels = "set"\n[[faults]]\nkind = "crash"\nmembers = [9]', 12, None),
        ("size = 4", "size = 4\nrequests = [{ nod = 1 }]", 4, "node"),
        ("size = 4", "size = 4\nrequests = [{ node = 7 }]", 4, None),
        ("[instance]", "faults = [1, 2]\n[instance]", 1, None),
    ],
)
def test_what_is_wrong_in_a_file_is_told_with_its_line(
    tmp_path: Path, old: str, new: str, line: int, nearest: str | None
) -> None:
    with pytest.raises(BadFileError) as caught:
        InstanceCheck().check(written(tmp_path, GOOD.replace(old, new)), Budget())
    assert caught.value.where == f"{tmp_path / 'commit.toml'}, line {line}"
    if nearest:
        assert caught.value.nearest == nearest


def test_a_file_that_is_no_instance_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFileError) as caught:
        InstanceCheck().check(written(tmp_path, "[instance\n"), Budget())
    assert "line 1" in str(caught.value)
    with pytest.raises(BadFileError):
        InstanceCheck().check(written(tmp_path, "[budget]\nstates = 4\n"), Budget())
    (tmp_path / "commit.toml").write_bytes(b"# a note\n\xff\xfe\x00")
    with pytest.raises(BadFileError, match="not UTF-8 text") as caught:
        InstanceCheck().check(tmp_path / "commit.toml", Budget())
    assert str(caught.value.where).endswith("commit.toml, line 2, column 1")
    with pytest.raises(BadFileError):
        InstanceCheck().check(tmp_path / "nowhere.toml", Budget())
    with pytest.raises(BadFileError):
        InstanceCheck().check(
            written(tmp_path, GOOD.replace("size = 4", "size = 4\nsymmetry = true\nexact = true")), Budget()
        )


def test_parameters_are_a_table(tmp_path: Path) -> None:
    with pytest.raises(BadFileError, match="must be a table") as caught:
        InstanceCheck().check(written(tmp_path, 'parameters = 3\n[instance]\nprotocol = "raft"\n'), Budget())
    assert caught.value.where == f"{tmp_path / 'commit.toml'}, line 1"


def test_what_is_no_toml_is_told_with_line_and_column(tmp_path: Path) -> None:
    with pytest.raises(BadFileError, match="not TOML") as caught:
        InstanceCheck().check(written(tmp_path, '[instance]\nprotocol = "raft"\n[[faults\n'), Budget())
    assert caught.value.where == f"{tmp_path / 'commit.toml'}, line 3, column 9"
    with pytest.raises(BadFileError, match="not TOML") as caught:
        InstanceCheck().check(written(tmp_path, "size ="), Budget())
    assert str(caught.value.where).startswith(f"{tmp_path / 'commit.toml'}, ")


def test_an_instance_may_be_packed_and_is_unpacked_up_to_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "commit.toml.gz"
    path.write_bytes(gzip.compress(GOOD.encode()))
    assert InstanceCheck().check(path, Budget()).verdicts[0].outcome == "holds"
    path.write_bytes(gzip.compress(b"#" * 2**21))
    with pytest.raises(BadFileError, match="too large"):
        InstanceCheck().check(path, Budget())
    path.write_bytes(gzip.compress(GOOD.encode())[:40])
    with pytest.raises(BadFileError, match="cannot be read"):
        InstanceCheck().check(path, Budget())
