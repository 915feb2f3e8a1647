"""Training of the distilled model."""

import numpy as np

from wavetank.serving.placement.beliefs import shipped_forest
from wavetank.serving.placement.training import example, examples, smape

LLAMA = "llama-3.1-8b-instruct"


def test_sets_differ_by_number_and_can_be_served():
    first, second = example(LLAMA, 0, 0), example(LLAMA, 0, 1)
    assert first != second and first == example(LLAMA, 0, 0)
    for number in range(50):
        problem, slots = example(LLAMA, 0, number)
        assert slots in problem.choices(max(each.rank for each in problem.adapters))


def test_the_shipped_forest_is_near_the_twin_on_sets_it_did_not_see():
    rows, values = examples(LLAMA, 77, 24)
    assert smape(shipped_forest(LLAMA), rows, values) < 0.15
    # Half of the rate everywhere would be 67 % off.
    assert smape(shipped_forest(LLAMA), rows, values - np.log(2)) > 0.5
