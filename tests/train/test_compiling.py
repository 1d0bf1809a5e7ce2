"""torch.compile with a way back. The backends here do no compiling of their own: dynamo's part is what is counted."""

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


def test_the_result_is_that_of_the_model_and_so_is_all_else():
    model = net()
    run = compiled(model, backend="eager")
    batch = torch.randn(5, 4)
    assert torch.allclose(run(batch), model(batch))
    assert run.state_dict().keys() == model.state_dict().keys()
    assert (run.graphs, run.recompiled, run.failure) == (1, 0, None)
    run.eval()
    assert not model.training


def test_compiling_again_is_counted_and_told_when_it_happens_often(caplog):
    run = compiled(net(), backend="eager", dynamic=False)
    with caplog.at_level(logging.WARNING, "penstock"):
        for size in (2, 2, 3, 4, 2, 5):
            run(torch.randn(size, 4))
    assert (run.graphs, run.recompiled) == (4, 3)
    assert caplog.text.count("dynamic=True") == 1


def test_a_backend_that_fails_leaves_the_model_as_it_is(caplog):
    def broken(graph, inputs):
        raise RuntimeError("no compiler here")

    model = net()
    run = compiled(model, backend=broken)
    batch = torch.randn(5, 4)
    with caplog.at_level(logging.WARNING, "penstock"):
        assert torch.allclose(run(batch), model(batch))
    assert "no compiler here" in run.failure
    assert "runs as it is" in caplog.text
    assert torch.allclose(run(batch), model(batch))


def test_an_error_of_the_models_own_comes_through():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        compiled(net(), backend="eager")(torch.randn(5, 7))
