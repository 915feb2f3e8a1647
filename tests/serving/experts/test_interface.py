"""Traces whose arrays do not belong together are refused, and parts of one are what they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.serving.experts.interface import RoutingTrace, check_devices


def trace(**changed: Any) -> RoutingTrace:
    given: dict[str, Any] = {
        "tokens": np.array([3, 1, 4, 1, 5]), "starts": np.array([0, 2, 5]), "prompts": np.array([1, 3]),
        "routes": np.array([[[0, 1], [2, 3], [1, 0], [3, 2], [0, 3]]]), "experts": 4, "vocabulary": 6,
    }  # fmt: skip
    return RoutingTrace(**{**given, **changed})


def test_a_part_has_its_requests_in_the_given_order() -> None:
    part = trace().part([1, 0])
    assert part.tokens.tolist() == [4, 1, 5, 3, 1]
    assert part.starts.tolist() == [0, 3, 5]
    assert part.prompts.tolist() == [3, 1]
    assert part.routes[0].tolist() == [[1, 0], [3, 2], [0, 3], [0, 1], [2, 3]]
    assert part.owners().tolist() == [0, 0, 0, 1, 1]
    assert (part.layers, part.requests) == (1, 2)


@pytest.mark.parametrize(
    "changed",
    [
        {"routes": np.zeros((1, 4, 2), np.int64)}, {"routes": np.zeros((1, 5, 0), np.int64)},
        {"routes": np.zeros((1, 5, 2), np.int64)}, {"routes": np.array([[[0, 4]] * 5])},
        {"routes": np.array([[[0, -1]] * 5])}, {"starts": np.array([0, 5, 5])}, {"starts": np.array([1, 2, 5])},
        {"starts": np.array([0, 4])}, {"starts": np.array([0])}, {"prompts": np.array([0, 3])},
        {"prompts": np.array([1, 4])}, {"prompts": np.array([1])}, {"vocabulary": 5},
        {"tokens": np.array([3, 1, -4, 1, 5])},
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(BadValueError, match="routing trace"):
        trace(**changed)


@pytest.mark.parametrize("devices", [0, 3, 8])
def test_experts_are_divided_equally_or_not_at_all(devices: int) -> None:
    with pytest.raises(BadValueError, match="divided equally"):
        check_devices(trace(), devices)
    check_devices(trace(), 4)
