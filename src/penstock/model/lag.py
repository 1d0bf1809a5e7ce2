"""Which workers are slower than the others whatever they are given, and by how much."""

from __future__ import annotations

import numpy as np

from penstock.model.scene import Floats, Ints

LAGS = 1.25
"""A worker lags if three quarters of its batches take more than so many times what the others' take."""
LAG_BATCHES = 3
"""Fewer say nothing about their worker."""

Lags = dict[int, Floats]
"""Seconds longer for any batch, by part of the work, of each worker that lags."""


def find_lags(work: Floats, worker: Ints) -> Lags:
    """From a row per part of the work and a column per batch. Where most are slow, nobody lags."""
    total = work.sum(axis=0)
    order = np.lexsort((total, worker))
    names, first, counts = np.unique(worker[order], return_index=True, return_counts=True)
    ranked = total[order]
    medians = ranked[first + counts // 2]
    usual = np.sort(medians)[(len(names) - 1) // 2]
    lagging = (ranked[first + counts // 4] > LAGS * usual) & (counts >= LAG_BATCHES)
    if not lagging.any():
        return {}
    others = np.median(work[:, ~np.isin(worker, names[lagging])], axis=1)
    return {int(name): np.maximum(np.median(work[:, worker == name], axis=1) - others, 0.0) for name in names[lagging]}


def take_off(work: Floats, worker: Ints, lags: Lags) -> Floats:
    """The work as it would be had nobody lagged."""
    plain = work.copy()
    for name, lag_s in lags.items():
        plain[:, worker == name] -= lag_s[:, None]
    return np.asarray(np.maximum(plain, 0.0))
