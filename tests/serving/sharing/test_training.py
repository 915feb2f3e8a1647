"""The critic's training."""

import numpy as np

from wavetank.serving.sharing.critics import shipped_forest
from wavetank.serving.sharing.training import examples


def test_the_shipped_critic_is_near_what_scenes_fulfil_that_it_did_not_see():
    rows, true = examples(900, 4)
    assert rows.shape == (true.size, 9) and true.size > 150
    said = shipped_forest().predict(rows)
    assert np.abs(said - true).mean() < 0.08
    # To say the mean of all is much worse: there is something to be learned.
    assert np.abs(said - true).mean() < 0.6 * np.abs(true - true.mean()).mean()
