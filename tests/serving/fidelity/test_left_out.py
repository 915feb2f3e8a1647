from __future__ import annotations

from dataclasses import dataclass

from wavetank.serving.fidelity.left_out import LEFT_OUT, SEEN, SEVERAL, cases


@dataclass(frozen=True)
class Run:
    tensor_parallel: int
    engines: int = 1

    @property
    def devices(self) -> int:
        return self.tensor_parallel * self.engines


ONE, TWO, FOUR, GROUP = Run(1), Run(2), Run(4), Run(1, engines=2)


def test_each_run_is_left_out_and_each_is_seen() -> None:
    found = cases([ONE, TWO])
    assert found[LEFT_OUT] == [(ONE, (TWO,)), (TWO, (ONE,))]
    assert found[SEEN] == [(ONE, (ONE, TWO)), (TWO, (ONE, TWO))]


def test_all_runs_of_one_degree_are_left_out_together() -> None:
    again = Run(2)
    found = cases([ONE, TWO, again, FOUR])
    assert found["tensor parallel 1 left out"] == [(ONE, (TWO, again, FOUR))]
    assert found["tensor parallel 2 left out"] == [(TWO, (ONE, FOUR)), (again, (ONE, FOUR))]
    assert found["tensor parallel 4 left out"] == [(FOUR, (ONE, TWO, again))]


def test_runs_on_several_devices_are_judged_by_those_on_one() -> None:
    assert cases([ONE, TWO, GROUP, FOUR])[SEVERAL] == [(each, (ONE,)) for each in (TWO, GROUP, FOUR)]


def test_there_is_no_case_without_runs_to_look_at() -> None:
    assert set(cases([ONE, GROUP])) == {LEFT_OUT, SEEN, SEVERAL}
    assert set(cases([ONE, Run(1)])) == {LEFT_OUT, SEEN}
    assert set(cases([TWO, Run(2)])) == {LEFT_OUT, SEEN}
    assert cases([TWO]) == {LEFT_OUT: [(TWO, ())], SEEN: [(TWO, (TWO,))]}
