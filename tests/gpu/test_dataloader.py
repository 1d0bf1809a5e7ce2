"""`make test-gpu`: penstock.DataLoader pins batches as torch does; skipped, with the reason, where there is no GPU."""

import gc
import threading

import pytest
import torch
import torch.utils.data
from tests.dataloader.samples import Numbers, Samples, outcomes, same

from penstock import DataLoader

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


@pytest.mark.parametrize("kind", ["tensor", "tuple", "dict", "namedtuple", "int or float"])
def test_pinned_batches_equal_torchs(kind):
    expected = outcomes(torch.utils.data.DataLoader(Samples(kind), batch_size=4, num_workers=1, pin_memory=True))
    assert same(outcomes(DataLoader(Samples(kind), batch_size=4, num_workers=2, pin_memory=True)), expected)


@pytest.mark.parametrize(
    "settings", [{}, {"persistent_workers": True}, {"in_order": False}, {"collate_fn": torch.tensor}]
)
def test_batches_are_pinned_in_every_epoch_and_copies_in_flight_stay_right(settings):
    loader = DataLoader(Numbers(400), batch_size=4, num_workers=2, pin_memory=True, **settings)
    for epoch in range(3):
        copies = []
        for count, batch in enumerate(loader):
            assert batch.is_pinned()
            copies.append(batch.to("cuda", non_blocking=True))
            if epoch == 1 and count == 7:
                break
        found = sorted(torch.cat(copies).tolist())
        assert found == list(range(400)) if epoch != 1 else len(set(found)) == 32


def test_errors_of_samples_arrive_through_the_pinning_thread():
    class Failing(Numbers):
        def __getitem__(self, index):
            if index == 9:
                raise KeyError("nine")
            return index

    found = outcomes(DataLoader(Failing(16), batch_size=4, num_workers=2, pin_memory=True))
    assert found[2][0] == "KeyError"
    assert [batch.tolist() for batch in (*found[:2], found[3])] == [[0, 1, 2, 3], [4, 5, 6, 7], [12, 13, 14, 15]]


def test_the_pinning_thread_ends_with_its_iterator():
    before = threading.active_count()
    for _ in range(3):
        next(iter(DataLoader(Numbers(400), batch_size=4, num_workers=2, pin_memory=True)))
        gc.collect()
    assert threading.active_count() == before
