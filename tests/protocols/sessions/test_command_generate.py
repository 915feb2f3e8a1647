import json

import pytest

from wavetank.protocols.sessions.examples import example


@pytest.fixture
def race(here):
    path = here / "race.nuscr"
    path.write_text(example("race"))
    return path


def test_erlang_is_a_module_a_role_and_one_they_share(call, here, race):
    shown = call("generate", str(race), "--to", "erlang", "--out", "src")
    assert shown.code == 0
    names = {"race_p.erl", "race_q.erl", "wavetank_session.erl"}
    assert {path.name for path in (here / "src").iterdir()} == names
    assert shown.out.splitlines()[-1].startswith("Race: 2 roles, 3 files, ")


def test_python_is_one_module(call, here, race):
    shown = call("generate", str(race), "--to", "python", "--out", "src", "--json")
    document = json.loads(shown.out)
    assert (document["protocol"], document["roles"], document["language"]) == ("Race", ["p", "q"], "python")
    (written,) = document["files"]
    text = (here / "src" / "race.py").read_text()
    assert written == {"file": "src/race.py", "lines": text.count("\n")}


def test_nothing_is_written_over_unless_forced(call, here, race):
    (here / "race.py").write_text("mine")
    shown = call("generate", str(race), "--to", "python", "--out", ".")
    assert shown.code == 3
    assert "--force" in shown.err
    assert (here / "race.py").read_text() == "mine"
    assert call("generate", str(race), "--to", "python", "--out", ".", "--force").code == 0
    assert "class P(Endpoint)" in (here / "race.py").read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["missing.nuscr", "--to", "python", "--out", "src"], "cannot be read"),
        (["race.nuscr", "--to", "haskell", "--out", "src"], "not one of the allowed words"),
        (["race.nuscr", "--to", "python", "--out", "src", "--protocol", "Rice"], "no such protocol"),
        (["race.nuscr", "--to", "python", "--out", "race.nuscr"], "is a file"),
        (["bad.nuscr", "--to", "erlang", "--out", "src"], "line 1, column 30"),
        (["race.nuscr", "--out", "src"], "--to"),
    ],
)
def test_what_cannot_be_generated_is_reported_and_nothing_is_written(call, here, race, arguments, says):
    (here / "bad.nuscr").write_text("protocol P(role A, role B) { m from A to C; }")
    shown = call("generate", *arguments)
    assert shown.code == 3
    assert says in shown.err
    assert not (here / "src").exists()


def test_the_named_protocol_is_generated(call, here):
    (here / "two.nuscr").write_text("protocol P(role A, role B) { } protocol Q(role A, role B) { m from A to B; }")
    assert call("generate", "two.nuscr", "--to", "python", "--out", ".", "--protocol", "Q").code == 0
    assert (here / "q.py").exists()


def test_a_folder_that_cannot_be_written_to_is_reported(call, here, race):
    (here / "file").write_text("")
    shown = call("generate", str(race), "--to", "python", "--out", "file/src")
    assert shown.code == 3
    assert "cannot be written" in shown.err
    assert "0 of 1 files were written" in shown.err
