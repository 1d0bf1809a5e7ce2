"""Gradient clipping."""

import math

import pytest
import torch
from torch import nn

from penstock.errors import SettingError
from penstock.train import GradClip


def model_with_gradients(scale=1.0, seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 2))
    (scale * model(torch.randn(8, 6)).square().sum()).backward()
    return model


def grads(model):
    return [parameter.grad.clone() for parameter in model.parameters()]


def constant(norm, parameter=None):
    """Return a parameter whose gradient has that norm."""
    parameter = nn.Parameter(torch.zeros(4)) if parameter is None else parameter
    parameter.grad = torch.full((4,), norm / 2)
    return parameter


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_it_clips_as_torch_does(scale):
    ours, theirs = model_with_gradients(scale), model_with_gradients(scale)
    norm = GradClip(0.5)(ours.parameters())
    expected = nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
    assert torch.allclose(norm, expected)
    assert all(torch.allclose(a, b) for a, b in zip(grads(ours), grads(theirs), strict=True))


def test_parameters_without_a_gradient_are_not_changed():
    model = model_with_gradients()
    model[0].weight.grad = None
    GradClip(0.1)(model.parameters())
    assert model[0].weight.grad is None


def test_the_norm_of_every_nth_step_is_recorded():
    clip = GradClip(1.0, every=3)
    for norm in range(1, 8):
        clip([constant(float(norm))])
    assert clip.recorded == [(0, 1.0), (3, 4.0), (6, 7.0)]
    clip([constant(8.0)])
    assert [step for step, _ in clip.recorded] == [0, 3, 6]


def test_numbers_are_copied_to_the_host_only_when_they_are_read(monkeypatch):
    fetched = []
    for name in ("item", "tolist", "__bool__", "__float__", "__int__"):
        real = getattr(torch.Tensor, name)
        monkeypatch.setattr(torch.Tensor, name, lambda self, real=real: (fetched.append(1), real(self))[1])
    clip = GradClip(1.0, adaptive=0.5, every=5)
    weight = nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([weight], 0.1, fused=True)
    for _ in range(60):
        constant(2.0, weight)
        clip.step(optimizer)
    assert fetched == []
    assert len(clip.recorded) == 12
    assert len(fetched) == 1


def test_an_adaptive_bound_is_the_percentile_of_the_last_norms():
    clip = GradClip(adaptive=0.9, every=1, window=100)
    for number in range(200):
        clip([constant(float(1 + number % 100))])
    assert clip.bound == 90.0
    assert clip([constant(1000.0)]).item() == pytest.approx(1000.0)
    parameter = constant(1000.0)
    clip([parameter])
    assert parameter.grad.norm().item() == pytest.approx(clip.bound, rel=0.05)


def test_an_adaptive_bound_is_never_above_the_fixed_one_and_waits_for_enough_norms():
    clip = GradClip(5.0, adaptive=0.5, every=1)
    for number in range(19):
        clip([constant(2.0)])
        assert clip.bound == 5.0, number
    clip([constant(2.0)])
    assert clip.bound == 2.0
    for _ in range(60):
        clip([constant(100.0)])
    assert clip.bound == 5.0


def test_a_norm_that_is_not_finite_does_not_become_the_bound():
    clip = GradClip(50.0, adaptive=1.0, every=1, window=40)
    for number in range(40):
        clip([constant(math.nan if number == 30 else 2.0)])
    assert clip.bound == 2.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("make", [
    lambda weights: torch.optim.SGD(weights, 0.1, momentum=0.9, fused=True),
    lambda weights: torch.optim.SGD(weights, 0.1, momentum=0.9),
    lambda weights: torch.optim.AdamW(weights, 0.1, fused=True),
    lambda weights: torch.optim.AdamW(weights, 0.1),
])  # fmt: skip
def test_a_step_with_gradients_that_are_not_finite_is_skipped_and_counted(make, bad):
    weight, twin = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
    optimizer, plain = make([weight]), make([twin])
    clip = GradClip(1.0)
    for norm in (1.0, bad, 3.0):
        constant(norm, weight)
        clip.step(optimizer)
        if math.isfinite(norm):
            constant(min(norm, 1.0), twin)
            plain.step()
    assert clip.skipped == 1
    assert torch.allclose(weight, twin, atol=1e-5)


def test_a_scalers_gradients_are_unscaled_first():
    weight = nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([weight], 1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(weight.sum() * 0.5).backward()
    clip = GradClip(100.0, every=1)
    clip.step(optimizer, scaler)
    scaler.update()
    assert clip.recorded == [(0, 1.0)]
    assert torch.equal(weight.detach(), torch.full((4,), -0.5))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "no bound"),
        ({"max_norm": 0}, "max_norm"),
        ({"adaptive": 1.5}, "adaptive"),
        ({"max_norm": 1, "every": 0}, "every"),
        ({"max_norm": 1, "window": -1}, "window"),
    ],
)
def test_invalid_bounds_are_refused(arguments, message):
    with pytest.raises(SettingError, match=message):
        GradClip(**arguments)


def test_clipping_without_gradients_is_an_error():
    with pytest.raises(SettingError, match="after backward"):
        GradClip(1.0)([nn.Parameter(torch.zeros(1))])
