"""A pair that no path joins keeps its distance, without a warning."""

from __future__ import annotations

import numpy as np

from fedhp.distance import update_distance


def test_no_warning_without_a_path() -> None:
    old = np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 3.0], [2.0, 3.0, 0.0]])
    new = update_distance(old, np.array([[0, 1]]), np.array([1.5]), smoothing=0.0)
    assert new.tolist() == [[0.0, 1.5, 2.0], [1.5, 0.0, 3.0], [2.0, 3.0, 0.0]]
