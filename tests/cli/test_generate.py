"""``wavetank generate``: what catalogs can generate, and a protocol's file alone as before."""

import pytest
from click.testing import CliRunner

from wavetank.cli.generate import command


def test_help_lists_what_can_be_generated():
    output = CliRunner().invoke(command, []).output
    assert "programs" in output
    assert "trace" in output


@pytest.mark.parametrize(
    "arguments",
    [
        ["none.nuscr", "--to", "python", "--out", "x"],
        ["--to", "python", "none.nuscr", "--out", "x"],
        ["programs", "none.nuscr", "--to", "python", "--out", "x"],
    ],
)
def test_a_file_alone_is_a_protocol(arguments):
    result = CliRunner().invoke(command, arguments)
    assert "none.nuscr" in str(result.exception)


def test_a_command_comes_before_a_file_of_its_name():
    result = CliRunner().invoke(command, ["trace", "none.et", "--out", "x"])
    assert "none.et" in str(result.exception)
