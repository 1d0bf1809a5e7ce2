"""Learning rates for another batch size, on a real optimizer."""

import pytest
import torch

from penstock.errors import SettingError
from penstock.train import scale_lr


def optimizer():
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    return torch.optim.SGD([{"params": weights[:1]}, {"params": weights[1:], "lr": 0.01}], lr=0.1)


def rates(optimizer):
    return [group["lr"] for group in optimizer.param_groups]


def test_all_rates_are_warmed_up_to_their_scaled_values():
    sgd = optimizer()
    schedule = scale_lr(sgd, 32, 128, warm_up_steps=3)
    seen = [rates(sgd)]
    for _ in range(4):
        sgd.step()
        schedule.step()
        seen.append(rates(sgd))
    assert [first for first, _ in seen] == pytest.approx([0.2, 0.3, 0.4, 0.4, 0.4])
    assert [second for _, second in seen] == pytest.approx([0.02, 0.03, 0.04, 0.04, 0.04])


def test_a_smaller_batch_has_its_rate_at_once_and_by_the_root_if_asked():
    sgd = optimizer()
    scale_lr(sgd, 64, 16, rule="sqrt")
    assert rates(sgd) == pytest.approx([0.05, 0.005])


def test_a_warm_up_of_unknown_length_is_refused():
    with pytest.raises(SettingError, match="warm_up_steps"):
        scale_lr(optimizer(), 32, 128)
