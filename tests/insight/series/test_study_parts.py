"""The study of parts: what a finder says is held against what was planted."""

from dataclasses import dataclass

import pytest

from wavetank.insight.series import histories
from wavetank.insight.series.finders import Found, GivenWeek
from wavetank.insight.series.study_parts import SeriesParts

STUDY = SeriesParts(planted=3, noise=4)


@dataclass(frozen=True)
class Oracle:
    beside: int = 0

    def find(self, series):
        kind, seed = series.name.split()
        if kind == "noise":
            return Found((), ())
        return Found((7.1, 90.0, 30.0)[: 2 + self.beside], (histories.planted(int(seed)).change + 3 + self.beside,))


def test_what_is_near_enough_is_found():
    found = STUDY.measure(Oracle(), 2)
    assert {name: value for name, value, _ in found.rows} == {
        "periods_found": 1.0, "periods_beside": 0.0, "periods_in_noise": 0.0, "shifts_found": 1.0,
        "shifts_beside": 0.0,
    }  # fmt: skip


def test_what_was_not_planted_counts_against_a_finder():
    found = {name: value for name, value, _ in STUDY.measure(Oracle(1), 2).rows}
    assert (found["periods_beside"], found["shifts_found"], found["shifts_beside"]) == (1.0, 0.0, 1.0)
    week = {name: value for name, value, _ in STUDY.measure(GivenWeek(), 0).rows}
    assert week["periods_found"] == pytest.approx(0.5)
    assert week["periods_in_noise"] == 1.0
