from __future__ import annotations

import pytest

from wavetank.cli.verdicts import exit_code, figures, say_findings, tally
from wavetank.ledger.catalog import Claim
from wavetank.ledger.claims import Finding
from wavetank.ledger.verdicts import CONSISTENT, CONTRADICTED, NOT_RUN, REACHED, SHORT, UNDECIDED, VERDICTS
from wavetank.study.effects import NOTHING, Effect


def finding(verdict: str = REACHED, system: str = "a", found: Effect = Effect(1.5, 1, 2, 1, 2, 6)) -> Finding:  # noqa: B008
    claim = Claim(system=system, says="is better", study="s", metric="m", where={"sizes": [1, 2]})
    return Finding(claim=claim, found=found, verdict=verdict)


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        ([], 0),
        ([REACHED, CONSISTENT], 0),
        ([REACHED, CONTRADICTED, UNDECIDED], 1),
        ([REACHED, SHORT], 1),
        ([REACHED, UNDECIDED], 2),
        ([REACHED, NOT_RUN], 2),
    ],
)
def test_the_worst_verdict_gives_the_exit_code(verdicts: list[str], code: int) -> None:
    assert exit_code(map(finding, verdicts)) == code


def test_the_tally_counts_what_occurs_in_the_order_of_verdicts() -> None:
    assert tally([finding(verdict) for verdict in (*reversed(VERDICTS), REACHED)]) == (
        "9 claims: 2 reached, 1 exceeds, 1 consistent, 1 short of it, 1 contradicted, 1 another quantity, "
        "1 undecided, 1 not run"
    )
    assert tally([finding()]) == "1 claim: 1 reached"


def test_figures_say_how_far_they_are_known() -> None:
    assert figures(finding()) == "; ours 1.50 (1 to 2 at 95 %, 6 runs)"
    assert figures(finding(found=Effect(1.5, 1, 2, 1.4, 1.6, 3))) == "; ours 1.50 (1.40 to 1.60 in 3 runs)"
    assert figures(finding(found=NOTHING)) == ""


def test_systems_are_named_where_there_are_several(capsys: pytest.CaptureFixture[str]) -> None:
    say_findings([finding()], where=False)
    assert (
        capsys.readouterr().out
        == "  reached           is better\n                    m; ours 1.50 (1 to 2 at 95 %, 6 runs)\n"
    )
    say_findings([finding(), finding(system="b"), finding(system="b")], where=False)
    out = capsys.readouterr().out.splitlines()
    assert [line for line in out if not line.startswith(" ")] == ["a", "b"]


def test_conditions_are_written_as_one_would_type_them(capsys: pytest.CaptureFixture[str]) -> None:
    say_findings([finding()], where=True)
    assert "study s --set sizes=1,2\n" in capsys.readouterr().out
