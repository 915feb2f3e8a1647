from __future__ import annotations

import math

import pytest

from wavetank.catalog import Claim
from wavetank.claims import FAILS, HOLDS, IN_PART, NOT_RUN, UNDECIDED, VERDICTS, Finding
from wavetank.cli.verdicts import exit_code, figures, say_findings, tally


def finding(verdict: str = HOLDS, system: str = "a", low: float = 1.0, high: float = 2.0) -> Finding:
    claim = Claim(system=system, says="is better", study="s", metric="m", where={"sizes": [1, 2]})
    return Finding(claim=claim, measured=1.5, low=low, high=high, verdict=verdict)


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        ([], 0),
        ([HOLDS, IN_PART], 0),
        ([HOLDS, FAILS, UNDECIDED], 1),
        ([HOLDS, UNDECIDED], 2),
        ([IN_PART, NOT_RUN], 2),
    ],
)
def test_the_worst_verdict_gives_the_exit_code(verdicts: list[str], code: int) -> None:
    assert exit_code(map(finding, verdicts)) == code


def test_the_tally_counts_what_occurs_in_the_order_of_verdicts() -> None:
    assert tally([finding(verdict) for verdict in (*reversed(VERDICTS), HOLDS)]) == (
        "6 claims: 2 holds, 1 holds in part, 1 does not hold here, 1 undecided, 1 not run"
    )
    assert tally([finding()]) == "1 claim: 1 holds"


def test_figures_have_their_interval_when_it_has_a_width() -> None:
    assert figures(finding()) == "; ours 1.50 (1 to 2)"
    assert figures(finding(low=1.5, high=1.5)) == "; ours 1.50"
    assert figures(finding(low=math.nan)) == "; ours 1.50 (- to 2)"
    nothing = Finding(claim=finding().claim, measured=math.nan, low=math.nan, high=math.nan, verdict=NOT_RUN)
    assert figures(nothing) == ""


def test_systems_are_named_where_there_are_several(capsys: pytest.CaptureFixture[str]) -> None:
    say_findings([finding()], where=False)
    assert capsys.readouterr().out == "  holds               is better\n                      m; ours 1.50 (1 to 2)\n"
    say_findings([finding(), finding(system="b"), finding(system="b")], where=False)
    out = capsys.readouterr().out.splitlines()
    assert [line for line in out if not line.startswith(" ")] == ["a", "b"]


def test_conditions_are_written_as_one_would_type_them(capsys: pytest.CaptureFixture[str]) -> None:
    say_findings([finding()], where=True)
    assert "study s --set sizes=1,2\n" in capsys.readouterr().out
