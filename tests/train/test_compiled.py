"""torch.compile with a fallback. The backends here compile nothing: the graphs that dynamo makes are counted."""

import logging

import pytest
import torch
from torch import nn

from penstock.train import compile as compiled


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU())


def test_results_and_attributes_are_those_of_the_model():
    model = net()
    run = compiled(model, backend="eager")
    batch = torch.randn(5, 4)
    assert torch.allclose(run(batch), model(batch))
    assert run.state_dict().keys() == model.state_dict().keys()
    assert (run.graphs, run.recompiled, run.failure) == (1, 0, None)
    run.eval()
    assert not model.training


def test_recompilations_are_counted_and_many_cause_a_warning(caplog):
    run = compiled(net(), backend="eager", dynamic=False)
    with caplog.at_level(logging.WARNING, "penstock"):
        for size in (2, 2, 3, 4, 2, 5):
            run(torch.randn(size, 4))
    assert (run.graphs, run.recompiled) == (4, 3)
    assert caplog.text.count("dynamic=True") == 1


def test_the_model_runs_uncompiled_if_the_backend_fails(caplog):
    def broken(graph, inputs):
        raise RuntimeError("no compiler here")

    model = net()
    run = compiled(model, backend=broken)
    batch = torch.randn(5, 4)
    with caplog.at_level(logging.WARNING, "penstock"):
        assert torch.allclose(run(batch), model(batch))
    assert "no compiler here" in run.failure
    assert "runs uncompiled" in caplog.text
    assert torch.allclose(run(batch), model(batch))


def test_an_error_of_the_model_is_raised():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        compiled(net(), backend="eager")(torch.randn(5, 7))


def test_gradients_under_autocast_are_those_of_the_model():
    class Distances(nn.Module):
        """Returns the mean distance of points: small differences of large numbers."""

        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 64)

        def forward(self, x):
            points = self.layer(x).float() + 30
            return torch.cdist(points, points).mean()

    def gradient(run, model, x):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = run(x)
        loss.backward()
        return model.layer.weight.grad.clone()

    torch.manual_seed(0)
    model, x = Distances(), torch.randn(32, 8)
    expected = gradient(model, model, x)
    run = compiled(model, backend="aot_eager")
    assert torch.allclose(gradient(run, model, x), expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))
    assert run.failure is None


def test_settings_of_torch_are_restored():
    from torch._functorch import config

    before = config.backward_pass_autocast
    compiled(net(), backend="aot_eager")(torch.randn(5, 4)).sum().backward()
    with pytest.raises(RuntimeError):
        compiled(net(), backend="eager")(torch.randn(5, 7))
    assert config.backward_pass_autocast == before
