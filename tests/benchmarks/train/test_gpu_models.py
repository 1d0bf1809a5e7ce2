"""Models of the GPU benchmark, as far as they can be tested on a CPU."""

import torch
from benchmarks.train.gpu_models import Transformer, loss_of


def test_the_transformer_has_the_weights_of_vit_s_and_gets_gradients_from_images():
    assert 20e6 < sum(each.numel() for each in Transformer().parameters()) < 24e6
    model = Transformer(side=32, width=24, depth=2, heads=2)
    loss_of(model, {"image": torch.randn(2, 3, 32, 32), "label": torch.tensor([3, 7])}).backward()
    assert all(each.grad is not None for each in model.parameters())
