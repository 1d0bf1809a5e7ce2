"""Functions on arrays that several packages share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.core.types import Floats


def mean(values: Sequence[float] | Floats) -> float:
    """Return the mean; 0 for no values."""
    return float(np.mean(values)) if len(values) else 0.0


def trimmed_mean(values: Floats, share: float = 0.02) -> float:
    """Return the mean without this share of the values at each end, at least one from 20 values on; 0 for no values."""
    left_out = max(round(share * len(values)), int(len(values) >= 20))
    return mean(np.sort(values)[left_out : len(values) - left_out]) if len(values) else 0.0


def weighted_median(values: Floats, weights: Floats) -> float:
    """Return the value below and above which lies half of the weight; the plain median if all weights are 0."""
    if weights.sum() <= 0:
        return float(np.median(values)) if len(values) else 0.0
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])


def amount_before(times: Floats, begins: Floats, ends: Floats, amounts: Floats) -> Floats:
    """Return for each time how much had been done, if each amount is done evenly between its begin and its end."""
    seconds = np.maximum(ends - begins, 1e-6 + 1e-9 * np.abs(begins))  # no less than floats of that size distinguish
    edges, per_s = np.concatenate((begins, begins + seconds)), amounts / seconds
    order = np.argsort(edges, kind="stable")
    edges, rates = edges[order], np.cumsum(np.concatenate((per_s, -per_s))[order])
    done = np.concatenate(([0.0], np.cumsum(rates[:-1] * np.diff(edges))))
    return np.interp(times, edges, done)


class Spans:
    """Intervals of time, in order and without overlap, of which the part within any other interval is asked for."""

    def __init__(self, begins: Floats, ends: Floats) -> None:
        edges = np.column_stack((begins, ends)).ravel()
        self._edges = np.maximum.accumulate(edges) if len(edges) else np.zeros(2)
        inside = np.diff(self._edges)
        inside[1::2] = 0.0
        self._before = np.concatenate(([0.0], np.cumsum(inside)))
        self.total_s = float(self._before[-1])

    def within(self, begins: Floats, ends: Floats) -> Floats:
        """Return how many seconds of the spans lie between each begin and its end."""
        found: Floats = np.interp(ends, self._edges, self._before) - np.interp(begins, self._edges, self._before)
        return np.maximum(found, 0.0)
