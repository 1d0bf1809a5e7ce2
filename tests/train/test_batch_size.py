"""Accumulated gradients, and learning rates for another batch size."""

import json

import pytest
import torch
from tests.support.ddp_rank import batch_of, gradients_of, loss_of, run_rank
from tests.support.ddp_rank import net as rank_net
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from penstock.errors import SettingError
from penstock.train import accumulate, scale_lr


def net():
    torch.manual_seed(0)
    return nn.Linear(4, 2)


def batches(count):
    torch.manual_seed(1)
    return [torch.randn(3, 4) for _ in range(count)]


def gradients(model, loader, n):
    """Return the gradients of every step that the optimizer would have made."""
    found = []
    for batch, micro in accumulate(loader, n, model):
        with micro:
            model(batch).square().mean().backward()
        if micro.last:
            found.append(torch.cat([each.grad.flatten() for each in model.parameters()]))
            model.zero_grad()
    return found


def expected(data, groups):
    model, found, at = net(), [], 0
    for size in groups:
        torch.stack([model(batch).square().mean() for batch in data[at : at + size]]).mean().backward()
        found.append(torch.cat([each.grad.flatten() for each in model.parameters()]))
        model.zero_grad()
        at += size
    return found


@pytest.mark.parametrize(
    ("count", "n", "groups"),
    [(8, 4, [4, 4]), (10, 4, [4, 4, 2]), (9, 4, [4, 4, 1]), (3, 8, [3]), (3, 1, [1, 1, 1]), (0, 4, [])],
)
def test_gradients_are_the_mean_over_the_group_of_any_length(count, n, groups):
    data = batches(count)
    found = gradients(net(), data, n)
    wanted = expected(data, groups)
    assert len(found) == len(wanted)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found, wanted, strict=True))


def test_a_loader_of_unknown_length_is_read_ahead_within_groups_only():
    taken = []

    def loader():
        for number in range(5):
            taken.append(number)
            yield number

    model = net()
    seen = [(batch, micro.count, micro.last, len(taken)) for batch, micro in accumulate(loader(), 2, model)]
    assert seen == [(0, 1, False, 2), (1, 2, True, 2), (2, 1, False, 4), (3, 2, True, 4), (4, 1, True, 5)]


@pytest.fixture
def group(tmp_path):
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def test_under_ddp_gradients_are_exchanged_once_a_group(group):
    exchanged = []

    def hook(state, bucket):
        exchanged.append(1)
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    data = batches(10)
    model = DistributedDataParallel(net())
    model.register_comm_hook(None, hook)
    found = gradients(model, data, 4)
    assert len(exchanged) == 3
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found, expected(data, [4, 4, 2]), strict=True))


def test_two_ranks_get_the_gradients_of_one_big_batch_and_exchange_them_once_a_step(tmp_path):
    torch.multiprocessing.spawn(run_rank, (2, str(tmp_path), 5, 2), nprocs=2)
    model, wanted = rank_net(), []
    for group in ([0, 1], [2, 3], [4]):
        big = torch.cat([batch_of(rank, number) for rank in range(2) for number in group])
        loss_of(model, big).backward()
        wanted.append(gradients_of(model))
        model.zero_grad()
    for rank in range(2):
        result = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert result["all_reduces"] == [0, 1, 2]  # once in every step, with its last batch
        assert len(result["gradients"]) == len(wanted)
        for found, expected in zip(result["gradients"], wanted, strict=True):
            assert found == pytest.approx(expected, abs=1e-6)


def test_an_error_inside_leaves_the_gradients_unchanged():
    model = net()
    with pytest.raises(RuntimeError, match="mine"):  # noqa: PT012
        for batch, micro in accumulate(batches(2), 2, model):
            with micro:
                model(batch).sum().backward()
                if micro.last:
                    before = model.weight.grad.clone()
                    raise RuntimeError("mine")
    assert torch.equal(model.weight.grad, before)


def test_empty_groups_are_refused():
    with pytest.raises(SettingError, match="n=0"):
        next(accumulate([1], 0, net()))


# -- learning rates ----------------------------------------------------------------------------------------------------


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


def test_a_smaller_batch_gets_its_rate_at_once_and_by_the_root_if_requested():
    sgd = optimizer()
    scale_lr(sgd, 64, 16, rule="sqrt")
    assert rates(sgd) == pytest.approx([0.05, 0.005])


def test_a_warm_up_of_unknown_length_is_refused():
    with pytest.raises(SettingError, match="warm_up_steps"):
        scale_lr(optimizer(), 32, 128)
