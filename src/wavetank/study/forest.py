"""Random forests: trained with scikit-learn, kept as arrays, evaluated with numpy alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class Forest:
    """A random forest as arrays, evaluated with numpy.

    Parameters
    ----------
    arrays : mapping
        ``feature`` (-1 at leaves), ``threshold``, ``left``, ``right`` and ``value``, one entry per node of all trees,
        and ``root``, one per tree.
    """

    def __init__(self, arrays: Any) -> None:
        self.feature = np.asarray(arrays["feature"], np.int64)
        self.threshold = np.asarray(arrays["threshold"], np.float64)
        self.left = np.asarray(arrays["left"], np.int64)
        self.right = np.asarray(arrays["right"], np.int64)
        self.value = np.asarray(arrays["value"], np.float64)
        self.root = np.asarray(arrays["root"], np.int64)

    def predict(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the mean of the trees.

        Parameters
        ----------
        rows : float64, shape (m, features)

        Returns
        -------
        float64, shape (m,)
        """
        at = np.broadcast_to(self.root, (rows.shape[0], self.root.size)).copy()
        row = np.arange(rows.shape[0])[:, None]
        while True:
            feature = self.feature[at]
            inner = feature >= 0
            if not inner.any():
                return np.asarray(self.value[at].mean(axis=1))
            goes_left = rows[row, np.where(inner, feature, 0)] <= self.threshold[at]
            at = np.where(inner, np.where(goes_left, self.left[at], self.right[at]), at)


def train_forest(
    rows: NDArray[np.float64], values: NDArray[np.float64], *, trees: int, depth: int, leaf: int = 2
) -> dict[str, Any]:
    """Train a forest with scikit-learn and return the arrays of a :class:`Forest`.

    Parameters
    ----------
    rows : float64, shape (m, features)
    values : float64, shape (m,)
    trees, depth : int
    leaf : int
        Fewest rows of a leaf.
    """
    from sklearn.ensemble import RandomForestRegressor

    forest = RandomForestRegressor(
        trees, max_depth=depth, min_samples_leaf=leaf, bootstrap=False, max_features=0.7, random_state=0
    ).fit(rows, values)
    parts: dict[str, list[Any]] = {"feature": [], "threshold": [], "left": [], "right": [], "value": []}
    root, before = [], 0
    for tree in (each.tree_ for each in forest.estimators_):
        leaf = tree.children_left < 0
        root.append(before)
        parts["feature"].append(np.where(leaf, -1, tree.feature).astype(np.int8))
        parts["threshold"].append(np.where(leaf, 0.0, tree.threshold))
        parts["left"].append(np.where(leaf, 0, tree.children_left + before).astype(np.int32))
        parts["right"].append(np.where(leaf, 0, tree.children_right + before).astype(np.int32))
        parts["value"].append(tree.value[:, 0, 0].astype(np.float32))
        before += tree.node_count
    return {name: np.concatenate(each) for name, each in parts.items()} | {"root": np.array(root, np.int32)}
