"""The job: what its operations take, and what is no job."""

from __future__ import annotations

import pytest
from tests.training.failures.jobs import STEP_S, job

from wavetank.errors import BadValueError
from wavetank.platforms.links import Link
from wavetank.training.failures.quotas import balanced, majors


def test_a_step_takes_its_fullest_replica_and_the_all_reduce() -> None:
    assert job().step_s(8, 4) == STEP_S
    assert job().step_s(8, 3) == 3 + 4 / 3
    assert job().step_s(8, 1) == 8
    slow = job(link=Link(bytes_per_s=4e9, latency_s=0.1, per_hop=True))
    assert slow.step_s(8, 4) == pytest.approx(STEP_S + 0.6)


def test_both_divisions_of_microbatches_give_the_fullest_replica_as_many() -> None:
    for replicas in range(1, 65):
        assert max(balanced(8192, replicas)) == max(majors(8192, replicas)) == job().quota(8192, replicas)


@pytest.mark.parametrize(
    "bad",
    [
        {"replicas": 0}, {"gpus": 0}, {"tokens": 0}, {"microbatches": 3}, {"microbatch_s": 0.0},
        {"microbatch_s": float("nan")}, {"restart_s": -1.0}, {"detect_s": float("nan")}, {"copy_s": float("inf")},
    ],
)  # fmt: skip
def test_what_is_no_job_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(BadValueError):
        job(**bad)
