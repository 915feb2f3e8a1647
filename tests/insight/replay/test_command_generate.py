"""``wavetank generate trace`` writes traces that can be read, and overwrites nothing."""

import json

from click.testing import CliRunner
from tests.insight.replay.test_generator import SOURCE
from tests.insight.replay.test_reading import job

from wavetank.errors import BadValueError
from wavetank.insight.replay import likeness, read_et, validate
from wavetank.insight.replay.command_generate import command


def run(*arguments):
    return CliRunner().invoke(command, [str(each) for each in arguments])


def test_traces_are_written_and_described(tmp_path):
    source, out = job(tmp_path / "secret", SOURCE), tmp_path / "shared"
    result = run(source, "--out", out, "--calls", 60, "--seed", 3)
    assert result.exit_code == 0, result.output
    made = read_et(out)
    assert len(made) == 4
    assert validate(made) == ()
    assert "4 traces" in result.output
    assert "those of the source" in " ".join(result.output.split())
    printed = json.loads(run(source, "--out", tmp_path / "json", "--calls", 60, "--seed", 3, "--json").output)
    assert printed["ks"] == likeness(SOURCE, made).ks
    assert (tmp_path / "json" / "trace.2.et").read_bytes() == (out / "trace.2.et").read_bytes()


def test_nothing_is_overwritten_without_being_asked(tmp_path):
    source, out = job(tmp_path / "secret", SOURCE), tmp_path / "shared"
    assert run(source, "--out", out, "--calls", 5).exit_code == 0
    before = (out / "trace.0.et").read_bytes()
    again = run(source, "--out", out, "--calls", 5, "--seed", 9)
    assert isinstance(again.exception, BadValueError)
    assert (out / "trace.0.et").read_bytes() == before
    assert run(source, "--out", out, "--calls", 5, "--seed", 9, "--force", "--blur", 0.2).exit_code == 0
    assert (out / "trace.0.et").read_bytes() != before
    assert isinstance(run(source, "--out", out / "trace.0.et").exception, BadValueError)
