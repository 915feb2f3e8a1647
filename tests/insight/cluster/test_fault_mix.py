"""Classes of faults: each in turn, or as often as recorded, and damaged counts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from wavetank.errors import BadFileError, BadValueError, DataUnavailableError
from wavetank.insight.cluster.fault_mix import COUNTS_FILE, STANDS_FOR, drawn_kinds, recorded_counts
from wavetank.insight.cluster.simulated_cluster import CLASSES


def test_classes_come_in_turn() -> None:
    kinds = drawn_kinds("classes", 23, 1)
    assert Counter(kinds) == {each.name: 3 if place < 3 else 2 for place, each in enumerate(CLASSES)}


def test_recorded_counts_are_those_of_the_classes() -> None:
    try:
        counts = recorded_counts()
    except DataUnavailableError as error:
        pytest.skip(str(error))
    assert counts == {each.name: each.recorded for each in CLASSES}
    drawn = Counter(drawn_kinds("recorded", 5000, 1))
    assert drawn["ecc"] / 5000 == pytest.approx(counts["ecc"] / sum(counts.values()), abs=0.02)
    assert drawn_kinds("recorded", 50, 1) != drawn_kinds("recorded", 50, 2)


def test_every_class_stands_for_records() -> None:
    assert set(STANDS_FOR) == {each.name for each in CLASSES} and all(STANDS_FOR.values())


@pytest.mark.parametrize(
    "text",
    ["", "level,class,description,count\nHardware,GPU,GPU Lost,many\n", "a,b\n1,2\n",
     "level,class,description,count\nHardware,GPU,GPU Lost,-4\nHardware,GPU,GPU DBE > Threshold,9\n",
     "level,class,description,count\nOther,Test,Temporarily Offline,2\n"],
)  # fmt: skip
def test_damaged_counts_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / COUNTS_FILE).write_text(text, encoding="utf-8")
    with pytest.raises(BadFileError):
        recorded_counts(tmp_path)


def test_an_unknown_mix_is_refused() -> None:
    with pytest.raises(BadValueError, match="mix"):
        drawn_kinds("wild", 3, 1)
