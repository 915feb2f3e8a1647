from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest
from wavetank_toys.studies import ToyNoise
from wavetank_toys.systems import Plain, Shifted

from wavetank.ledger.facts import cited, documented, file_of, idea_of, parameters_of, setup_of
from wavetank.settings import setting
from wavetank.study.study import Study


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


def test_the_idea_is_the_docstring_of_the_module() -> None:
    assert idea_of(Shifted) == (
        "Four ways to change a random draw, none of them clever.\n\n"
        "A toy answers one question, what a draw becomes, so that a test can say beforehand what a study must find."
    )


def test_the_set_up_is_the_studys_own_docstring_without_its_sections() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Silent(Study):
        name: ClassVar[str] = "silent"

    assert setup_of(ToyNoise) == "Every seed draws once; all toys change the same draw."
    assert setup_of(Base) == "The base."
    assert setup_of(Silent) == ""


def test_a_file_is_named_from_where_one_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = Path(sys.modules[Plain.__module__].__file__ or "")
    monkeypatch.chdir(file.parents[1])
    assert file_of(Plain) == "wavetank_toys/systems.py"
    monkeypatch.chdir(tmp_path)
    assert file_of(Plain) == str(file)


def test_a_source_is_cited_in_words_with_its_address() -> None:
    source = {"title": "T", "authors": ["A", "B"], "year": 2026, "venue": "V", "doi": "10/x", "url": "https://u"}
    assert cited(source) == ("A, B, T, V, 2026", "https://doi.org/10/x")
    assert cited({"title": "T", "arxiv": "1.2"}) == ("T, arXiv 1.2", "https://arxiv.org/abs/1.2")
    assert cited({"url": "https://u"}) == ("https://u", "https://u")
    assert cited({"title": "T", "url": "javascript:alert(1)"}) == ("T", "")
    assert cited({}) == ("", "")
