from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from wavetank_toys.studies import ToyNoise
from wavetank_toys.systems import Plain, Shifted

from wavetank.catalog import RUNS
from wavetank.cli.facts import (
    RUNS_IN_WORDS,
    documented,
    file_of,
    idea_of,
    parameters_of,
    question_of,
    source_lines,
)
from wavetank.settings import setting


@dataclass(frozen=True, kw_only=True)
class Base:
    """The base.

    Parameters
    ----------
    wide, high : float
        Two at once.
    """

    wide: float = 1.0
    high: float = 1_000_000.0


@dataclass(frozen=True, kw_only=True)
class Derived(Base):
    """One line.

    Parameters
    ----------
    needed : int
        What must be given.
    list_s : sequence of float, optional
        First line,
        second line.

        A second paragraph.

    Returns
    -------
    nothing
        At all.
    """

    needed: int
    list_s: Sequence[float] = (0.5, 2.0)
    made: list[int] = field(default_factory=lambda: [3])
    eager: bool = True
    least: int = setting(1, says="told by its metadata", low=1, unit="steps")
    hidden: int = field(default=0, init=False)


def test_every_word_of_the_catalog_is_explained() -> None:
    assert set(RUNS_IN_WORDS) == set(RUNS)


def test_docstrings_tell_what_metadata_does_not_and_bases_tell_theirs() -> None:
    assert documented(Derived) == {
        "wide": "Two at once.",
        "high": "Two at once.",
        "needed": "What must be given.",
        "list_s": "First line, second line. A second paragraph.",
    }


def test_parameters_have_defaults_units_and_bounds() -> None:
    found = {parameter.name: parameter for parameter in parameters_of(Derived, {"wide": 2.5})}
    assert list(found) == ["wide", "high", "needed", "list_s", "made", "eager", "least"]
    assert (found["wide"].default, found["wide"].value()) == (2.5, "2.5")
    assert found["high"].value() == "1000000"
    assert (found["needed"].required, found["needed"].value()) == (True, "(must be given)")
    assert found["list_s"].value() == "0.5,2"
    assert found["made"].value() == "3"
    assert found["eager"].value() == "true"
    assert (found["least"].value(), found["least"].allowed(), found["least"].says) == (
        "1 steps",
        "1 steps or more",
        "told by its metadata",
    )


def test_a_row_is_plain_json() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Unbounded:
        limit_s: float = setting(math.inf, unit="s")

    (parameter,) = parameters_of(Unbounded)
    assert parameter.as_row() == {
        "name": "limit_s",
        "kind": "float",
        "default": "inf",
        "required": False,
        "unit": "s",
        "says": "",
        "choices": (),
        "low": None,
        "high": None,
    }


def test_a_class_that_is_no_dataclass_has_no_parameters() -> None:
    assert parameters_of(dict) == []


def test_the_idea_ends_where_the_source_begins() -> None:
    assert idea_of(Shifted).splitlines()[0] == "Four ways to change a random draw, none of them clever."
    assert "Source" not in idea_of(Shifted)
    assert "Differs" not in idea_of(Shifted)


def test_the_question_is_the_studys_own_docstring() -> None:
    assert question_of(ToyNoise) == (
        "Which toy gives the smallest value?\n\nEvery seed draws once; all toys change the same draw."
    )


def test_a_file_is_named_from_where_one_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = Path(sys.modules[Plain.__module__].__file__ or "")
    monkeypatch.chdir(file.parents[1])
    assert file_of(Plain) == "wavetank_toys/systems.py"
    monkeypatch.chdir(tmp_path)
    assert file_of(Plain) == str(file)


def test_a_source_is_told_in_lines() -> None:
    source = {"title": "T", "authors": ["A", "B"], "year": 2026, "venue": "V", "doi": "10/x", "url": "u", "page": 3}
    assert source_lines(source) == ["A, B. T. V, 2026", "https://doi.org/10/x", "u", "page: 3"]
    assert source_lines({"title": "T", "arxiv": "1.2"}) == ["T", "https://arxiv.org/abs/1.2"]
    assert source_lines({}) == []
