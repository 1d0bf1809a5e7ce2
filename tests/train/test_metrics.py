"""Running means."""

import math

import pytest
import torch

from penstock.errors import SettingError
from penstock.train import Metrics


def test_means_of_tensors_and_numbers_are_weighted():
    metrics = Metrics()
    metrics.add(loss=torch.tensor(1.0), hits=1, weight=3)
    metrics.add(loss=torch.tensor([4.0]), hits=0)
    assert metrics.means() == {"loss": 1.75, "hits": 0.75}
    assert str(metrics) == "loss 1.75, hits 0.75"
    metrics.reset()
    metrics.add(loss=2.0)
    assert metrics.means() == {"loss": 2.0}


def test_a_long_sum_of_half_precision_keeps_its_digits():
    metrics = Metrics()
    for _ in range(5000):
        metrics.add(loss=torch.tensor(0.1, dtype=torch.float16))
    assert metrics.means()["loss"] == pytest.approx(float(torch.tensor(0.1, dtype=torch.float16)), rel=1e-9)


def test_adding_copies_nothing_to_the_host_and_holds_no_graph(monkeypatch):
    metrics = Metrics()
    weight = torch.ones(1, requires_grad=True)
    for name in ("item", "tolist", "__bool__", "__float__"):
        monkeypatch.setattr(torch.Tensor, name, lambda self: pytest.fail("copied to the host"))
    for _ in range(3):
        metrics.add(loss=(weight * 2).sum())
    monkeypatch.undo()
    assert metrics.means() == {"loss": 2.0}
    assert not any(value.requires_grad for value in metrics._sums.values())


def test_a_nan_stays_visible():
    metrics = Metrics()
    metrics.add(loss=torch.tensor(math.nan))
    metrics.add(loss=1.0)
    assert math.isnan(metrics.means()["loss"])


def test_values_without_a_mean_are_refused():
    with pytest.raises(SettingError, match="2 numbers"):
        Metrics().add(loss=torch.zeros(2))
    with pytest.raises(SettingError, match="weight"):
        Metrics().add(loss=1.0, weight=0)
