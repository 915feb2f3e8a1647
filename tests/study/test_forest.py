"""Forests as arrays."""

import numpy as np

from wavetank.study.forest import Forest, train_forest


def test_a_forest_by_hand():
    # One tree: below 0.5 in the second column 1, else by the first column 2 or 4; another one is always 0.
    forest = Forest({
        "feature": [1, -1, 0, -1, -1, -1], "threshold": [0.5, 0, 10.0, 0, 0, 0], "left": [1, 0, 3, 0, 0, 0],
        "right": [2, 0, 4, 0, 0, 0], "value": [0, 1.0, 0, 2.0, 4.0, 0.0], "root": [0, 5],
    })  # fmt: skip
    rows = np.array([[99.0, 0.5], [10.0, 0.6], [11.0, 0.6]])
    assert forest.predict(rows).tolist() == [0.5, 1.0, 2.0]


def test_a_trained_forest_is_the_one_of_the_library():
    from sklearn.ensemble import RandomForestRegressor

    rng = np.random.default_rng(0)
    rows = rng.uniform(0, 1, (400, 9))
    values = np.sin(4 * rows[:, 0]) + rows[:, 3]
    theirs = RandomForestRegressor(
        4, max_depth=8, min_samples_leaf=2, bootstrap=False, max_features=0.7, random_state=0
    ).fit(rows, values)
    ours = Forest(train_forest(rows, values, trees=4, depth=8))
    # Their rows are float32: ours next to a threshold may go the other way.
    assert np.mean(np.abs(ours.predict(rows) - theirs.predict(rows)) < 1e-6) > 0.99
    assert np.mean(np.abs(ours.predict(rows) - values)) < 0.1
