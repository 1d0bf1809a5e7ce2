"""Training in 16 bits."""

import math

import pytest
import torch
from torch import nn

from penstock.errors import PenstockError, SettingError
from penstock.train import GradClip, precision
from penstock.train.mixed_precision import MatrixProduct


@pytest.fixture(autouse=True)
def _no_onednn():
    """Disable oneDNN: some virtual machines report AMX without having it, and its bf16 kernels then end the process."""
    before, *_ = torch.backends.mkldnn.set_flags(_enabled=False)
    yield
    torch.backends.mkldnn.set_flags(_enabled=before)


def net(inside=16):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, inside), nn.LayerNorm(inside), nn.Linear(inside, 8))


def train(kind, steps=20, clip=None, **settings):
    model = net()
    amp = precision(model, kind, **settings)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    inputs, target = torch.randn(32, 16), torch.randn(32, 8)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        with amp.autocast():
            loss = nn.functional.mse_loss(model(inputs).float(), target)
        amp.backward(loss)
        amp.step(optimizer, clip)
        losses.append(loss.item())
    return losses, amp


@pytest.mark.parametrize("kind", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("clip", [None, GradClip(10.0)])
def test_losses_decrease_alike_in_every_precision(kind, clip):
    plain, _ = train("fp32")
    losses, _ = train(kind, clip=clip)
    assert losses[-1] < 0.8 * losses[0]
    assert losses == pytest.approx(plain, rel=0.05)


def test_autocast_computes_in_the_requested_precision():
    model = net()
    for kind, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)):
        with precision(model, kind).autocast():
            assert model(torch.randn(2, 16)).dtype == dtype


def test_a_fixed_loss_scale_is_kept_and_a_dynamic_one_is_reduced():
    for scale, expected in ((512.0, 512.0), ("dynamic", 65536.0 / 2)):
        model = net()
        amp = precision(model, "fp16", loss_scale=scale)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        before = [each.detach().clone() for each in model.parameters()]
        amp.backward(model(torch.full((1, 16), math.inf)).sum())
        amp.step(optimizer)
        assert amp.scaler.get_scale() == expected
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)), "the step is skipped"


def test_the_scale_survives_a_checkpoint():
    _, amp = train("fp16", steps=3)
    other = precision(net(), "fp16")
    other.load_state_dict(amp.state_dict())
    assert other.state_dict() == amp.state_dict()
    assert precision(net(), "bf16").state_dict() == {}


def test_a_run_of_losses_that_are_not_finite_is_an_error():
    model = net()
    amp = precision(model, "bf16", watch=5)
    weight = next(model.parameters())
    for _ in range(4):
        amp.backward((weight * math.nan).sum())
    amp.backward(weight.sum())
    for _ in range(4):
        amp.backward((weight * math.nan).sum())
    with pytest.raises(PenstockError, match="5 losses in succession"):
        amp.backward((weight * math.nan).sum())


def test_the_report_has_operations_in_32_bits_and_products_that_do_not_fit():
    model = net(inside=20)
    report = precision(model, "bf16").inspect(lambda: model(torch.randn(32, 16)).float().exp().sum())
    assert set(report.products) == {
        MatrixProduct("addmm", (32, 16, 20), "bfloat16"),
        MatrixProduct("addmm", (32, 20, 8), "bfloat16"),
    }
    assert not any(product.fits for product in report.products)
    assert {"exp", "sum"} <= set(report.in_full)
    assert "addmm" not in report.in_full
    assert "0 of 2 products fit" in str(report)


def test_the_report_has_products_that_fit_tensor_cores():
    model = nn.Sequential(nn.Conv2d(8, 16, 3), nn.Flatten(), nn.Linear(64, 8))
    images = torch.randn(8, 8, 4, 4)
    report = precision(model, "fp16").inspect(lambda: model(images))
    assert all(product.fits for product in report.products)
    assert {product.operation for product in report.products} == {"convolution", "addmm"}
    in_full = precision(model, "fp32").inspect(lambda: model(images))
    assert not any(product.fits for product in in_full.products)
    assert in_full.in_full == {"convolution": 1, "addmm": 1}, "views are not counted"


def test_tensor_cores_of_a_cpu_are_not_known():
    assert precision(net(), "bf16").tensor_cores is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fp8",), "bf16, fp16, fp32"),
        (("bf16", 512.0), "no loss_scale"),
        (("fp16", 0.0), "loss_scale"),
        (("fp16", math.nan), "loss_scale"),
    ],
)
def test_invalid_settings_are_refused(arguments, message):
    kind, *scale = arguments
    with pytest.raises(SettingError, match=message):
        precision(net(), kind, **({"loss_scale": scale[0]} if scale else {}))


def test_a_model_without_parameters_is_refused():
    with pytest.raises(SettingError, match="no device"):
        precision(nn.Identity(), "bf16")
