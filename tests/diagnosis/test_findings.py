"""A diagnosis is verified: figures that do not recompute, or stand in a sentence without evidence, are refused."""

import math
from dataclasses import replace

import pytest

from wavetank.diagnosis.findings import Diagnosis, Evidence, Finding, by_severity, read, unsupported, verify
from wavetank.errors import BadFileError, BadValueError


class Source:
    """Quantities by name; ``broken`` raises."""

    def __init__(self, **values):
        self.values = values

    def quantity(self, name, **of):
        if name not in self.values:
            raise BadFileError("There is no such quantity.", given=name)
        value = self.values[name]
        return value(**of) if callable(value) else value

    def how(self, name):
        return f"read of {name}"


SOURCE = Source(idle_share=0.25, time_s=0.002, name="gemm", part=lambda rank: 10 * rank)


def finding(**changed):
    given = {
        "label": "idle", "where": "rank 3", "severity": "warning", "confidence": 0.5,
        "says": "{where} idles {idle_share}",
        "evidence": (read(SOURCE, "idle_share"), read(SOURCE, "part", rank=3)), "advice": "do more", **changed,
    }  # fmt: skip
    return Finding(**given)


def test_a_figure_is_read_with_its_arguments_and_shown_with_its_unit():
    part = read(SOURCE, "part", "s", rank=3, as_name="of_three")
    assert (part.value, part.of, part.key, part.how) == (30, {"rank": 3}, "of_three", "read of part")
    assert read(SOURCE, "time_s", "s").shown == "2 ms"
    assert read(SOURCE, "idle_share").shown == "25 %"
    assert read(SOURCE, "name").shown == "gemm"


def test_sentences_take_their_figures_from_the_evidence():
    assert finding().sentence("rank of {where} idles {idle_share} and {part}") == "Rank of rank 3 idles 25 % and 30"


def test_what_recomputes_is_supported():
    good = Diagnosis(subject="x", kind="k", facts=(read(SOURCE, "time_s", "s"),), findings=(finding(),))
    assert unsupported(good, SOURCE) == []
    verify(good, SOURCE)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"evidence": ()}, "no evidence"),
        ({"evidence": (Evidence(name="idle_share", value=0.26),)}, "is 0.25, not 0.26"),
        ({"evidence": (Evidence(name="idle_share", value="a lot"),)}, "not a lot"),
        ({"evidence": (Evidence(name="part", value=30),)}, "cannot be read"),
        ({"evidence": (Evidence(name="part", value=30, of={"rank": 2}),)}, "is 20, not 30"),
        ({"evidence": (Evidence(name="invented", value=1),)}, "cannot be read"),
        ({"says": "{where} idles 3 times"}, "without evidence"),
        ({"advice": "use ٣ more"}, "without evidence"),
        ({"says": "{where} idles {other}"}, "no evidence"),
        ({"says": "{where.__class__}"}, "no evidence"),
        ({"says": "{idle_share:9}"}, "no evidence"),
        ({"says": "{idle_share!r}"}, "no evidence"),
        ({"says": "{"}, "cannot be read"),
        ({"confidence": math.nan}, "confidence"),
        ({"confidence": 1.5}, "confidence"),
        ({"severity": "awful"}, "severity"),
    ],
)
def test_what_does_not_is_named(changed, problem):
    wrong = unsupported(Diagnosis(subject="x", kind="k", findings=(finding(**changed),)), SOURCE)
    assert any(problem in each for each in wrong)
    with pytest.raises(BadValueError, match="does not support"):
        verify(Diagnosis(subject="x", kind="k", findings=(finding(**changed),)), SOURCE)


def test_a_fact_that_is_no_number_any_more_is_not_supported():
    fact = read(Source(a=1.0), "a")
    assert unsupported(Diagnosis(subject="x", kind="k", facts=(fact,)), Source(a=math.nan))
    assert unsupported(Diagnosis(subject="x", kind="k", facts=(replace(fact, value=math.nan),)), Source(a=math.nan))


def test_the_gravest_and_surest_come_first():
    drawn = [
        finding(severity=s, confidence=c)
        for s, c in (("note", 1), ("critical", 0.1), ("warning", 0.5), ("warning", 0.9))
    ]
    assert [(each.severity, each.confidence) for each in by_severity(drawn)] == [
        ("critical", 0.1), ("warning", 0.9), ("warning", 0.5), ("note", 1),
    ]  # fmt: skip
