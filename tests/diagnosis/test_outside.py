"""Analysers of others: asked in a process, which may fail, hang, or talk nonsense."""

import sys

import pytest

from wavetank.diagnosis.outside import ask, outside_python
from wavetank.errors import WavetankError


def python(code):
    return [sys.executable, "-c", code]


def test_the_last_line_is_the_answer_to_the_question():
    code = "import json, sys; q = json.load(sys.stdin); print('a warning'); print(json.dumps({'twice': 2 * q['n']}))"
    assert ask(python(code), {"n": 21}, name="it", timeout_s=30) == {"twice": 42}


@pytest.mark.parametrize(("code", "says"), [
    ("raise ValueError('no such thing')", "no such thing"), ("pass", "exit code 0"), ("print('{')", "no JSON"),
])  # fmt: skip
def test_a_process_that_gives_no_answer_is_named(code, says):
    with pytest.raises(WavetankError) as caught:
        ask(python(code), {}, name="the peer", timeout_s=30)
    assert "the peer" in str(caught.value)
    assert says in str(caught.value)


def test_a_process_that_hangs_is_ended():
    with pytest.raises(WavetankError, match="did not answer in time"):
        ask(python("import time; time.sleep(60)"), {}, name="the peer", timeout_s=0.5)


def test_a_program_that_is_not_there_is_named(tmp_path):
    with pytest.raises(WavetankError, match="could not be started"):
        ask([str(tmp_path / "nothing")], {}, name="the peer", timeout_s=5)


def test_the_environment_is_the_one_given_or_that_of_a_process():
    code = "import json, os; print(json.dumps(sorted(os.environ.get(k, '') for k in ('WAVETANK_PROBE',))))"
    assert ask(python(code), {}, name="it", timeout_s=30, environment={"WAVETANK_PROBE": "x"}) == ["x"]


def test_a_python_is_named_or_that_of_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert outside_python("") == ""
    assert outside_python(sys.executable) == sys.executable
    program = tmp_path / ".venv-insight-peers" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert outside_python("").endswith(".venv-insight-peers/bin/python")
