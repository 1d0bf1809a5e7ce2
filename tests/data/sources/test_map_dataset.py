"""Who picks the samples of a dataset, what workers do with them, and how far ahead anybody looks."""

import itertools
import pickle
import random
import sys
from collections import namedtuple

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, IterableDataset, RandomSampler, Subset, TensorDataset

from penstock.core.contracts import BAD_SAMPLE, BatchRequest, Task
from penstock.core.slab_layout import SlabLayout
from penstock.data.decode.dataset_program import CollateProgram, DatasetSamples, has_getitems
from penstock.data.decode.rng import restore_global_rngs, seed_global_rngs
from penstock.data.order.batch_lookahead import DRAW_CHUNK, DRAWN_FIRST, BatchLookahead
from penstock.data.order.batches import BatchPlan
from penstock.data.order.ranks import RankShare
from penstock.data.order.sampler import BatchSamplerOrder, SamplerOrder, SeededOrder
from penstock.data.sources.map_dataset import DatasetSource, is_dataset
from penstock.errors import PenstockError, SampleError, SettingError

# -- picking ---------------------------------------------------------------------------------------------------


def batches(picks, epoch=0, position=0):
    return [request.samples.tolist() for request in picks.batch_requests(epoch, position)]


def samples_of(picks, epoch=0):
    return list(itertools.chain(*batches(picks, epoch)))


def own(length=10, **settings):
    return SeededOrder(length, length, **{"shuffle": False, "seed": 0, "batch_plan": BatchPlan(4), **settings})


class Recorder:
    """A sampler that shifts by its epoch, and counts how much was asked of it."""

    def __init__(self, length=10):
        self.length, self.epoch, self.asked = length, 0, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.length

    def __iter__(self):
        for at in range(self.length):
            self.asked += 1
            yield (at + self.epoch) % self.length


def test_our_own_order_is_every_sample_once_and_another_in_each_epoch():
    shuffled = own(50, shuffle=True)
    first, second = (samples_of(shuffled, epoch) for epoch in (0, 1))
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    assert first == samples_of(own(50, shuffle=True))
    assert first != samples_of(own(50, shuffle=True, seed=1))


def test_ranks_share_our_own_order_step_by_step():
    ranks = [batches(own(12, batch_plan=BatchPlan(2, False, RankShare(rank, 2)))) for rank in range(2)]
    assert ranks == [[[0, 2], [4, 6], [8, 10]], [[1, 3], [5, 7], [9, 11]]]


def test_a_samplers_indices_are_cut_into_batches():
    assert batches(SamplerOrder([3, 1, 2, 0, 4], BatchPlan(2))) == [[3, 1], [2, 0], [4]]
    assert batches(SamplerOrder([3, 1, 2, 0, 4], BatchPlan(2, drop_last=True))) == [[3, 1], [2, 0]]


def test_a_batch_samplers_batches_stay_as_they_are():
    picks = BatchSamplerOrder([[5], [1, 2, 3], [], [4]])
    assert batches(picks) == [[5], [1, 2, 3], [], [4]]
    assert picks.num_batches() == 4


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("length", [0, 7, 8])
def test_counts_are_those_of_torch(length, drop_last):
    theirs = BatchSampler(range(length), 4, drop_last)
    assert (
        SamplerOrder(range(length), BatchPlan(4, drop_last)).num_batches()
        == BatchSamplerOrder(theirs).num_batches()
        == len(theirs)
    )
    assert own(length, batch_plan=BatchPlan(4, drop_last)).num_batches() == len(theirs)


@pytest.mark.parametrize(
    "picks",
    [
        own(20, shuffle=True),
        SamplerOrder(Recorder(20), BatchPlan(4)),
        BatchSamplerOrder(BatchSampler(Recorder(20), 4, False)),
    ],
    ids=lambda picks: type(picks).__name__,
)
@pytest.mark.parametrize("epoch", [0, 3])
def test_any_end_of_a_batch_is_a_place_to_go_on_from(picks, epoch):
    whole = list(picks.batch_requests(epoch, 0))
    for number, request in enumerate(whole, 1):
        assert batches(picks, epoch, request.end) == [rest.samples.tolist() for rest in whole[number:]]


def test_a_sampler_that_has_become_shorter_cannot_be_resumed():
    with pytest.raises(SettingError, match="ends after 5 samples, before sample 8"):
        batches(SamplerOrder(range(5), BatchPlan(4)), position=8)
    with pytest.raises(SettingError, match="ends after 3 samples, before sample 8"):
        batches(BatchSamplerOrder([[1, 2, 3]]), position=8)


def test_a_batch_sampler_that_cuts_elsewhere_cannot_be_resumed():
    with pytest.raises(SettingError, match="no batch of it begins at sample 4"):
        batches(BatchSamplerOrder([[1, 2, 3], [4, 5, 6]]), position=4)


def test_a_sampler_is_told_the_epoch():
    assert batches(SamplerOrder(Recorder(4), BatchPlan(4)), epoch=3) == [[3, 0, 1, 2]]
    assert batches(BatchSamplerOrder(BatchSampler(Recorder(4), 2, False)), epoch=1) == [[1, 2], [3, 0]]


def test_a_sampler_whose_epoch_the_user_sets_is_left_alone():
    sampler = Recorder(4)
    picks = SamplerOrder(sampler, BatchPlan(4))
    for epoch in (2, 3):
        sampler.set_epoch(epoch)
        assert batches(picks, epoch=epoch - 2) == [[(at + epoch) % 4 for at in range(4)]]


def test_a_distributed_sampler_gives_its_own_share():
    data = TensorDataset(torch.arange(10))
    shares = [DistributedSampler(data, num_replicas=2, rank=rank, shuffle=False) for rank in range(2)]
    assert [batches(SamplerOrder(begin_epoch, BatchPlan(3))) for begin_epoch in shares] == [
        [[0, 2, 4], [6, 8]],
        [[1, 3, 5], [7, 9]],
    ]


@pytest.mark.parametrize("wrong", ["x", 1.5, None, [1]])
def test_what_is_no_index_is_refused(wrong):
    for picks in (SamplerOrder([0, wrong], BatchPlan(2)), BatchSamplerOrder([[0, wrong]])):
        with pytest.raises(SettingError, match="not an index"):
            batches(picks)


def test_indices_may_be_of_numpy_or_torch():
    assert batches(SamplerOrder([np.int32(1), torch.tensor(2)], BatchPlan(2))) == [[1, 2]]


# -- looking ahead ---------------------------------------------------------------------------------------------


def batch_requests(sizes):
    return (BatchRequest(0, np.zeros(size, np.int64), 0) for size in sizes)


def test_an_endless_sampler_is_asked_no_more_than_is_needed():
    asked = []

    def endless():
        for at in itertools.count():
            asked.append(at)
            yield BatchRequest(0, np.array([at]), at + 1)

    ahead = BatchLookahead(endless(), itertools.count())
    assert len(asked) == DRAWN_FIRST
    ahead.start(slab_samples=1, min_ahead=100)
    assert len(asked) == 100
    for at in range(50):
        request = ahead.next_batch()
        assert (request.number, request.samples.tolist()) == (at, [at])
        assert 101 + at <= len(asked) < 101 + at + DRAW_CHUNK
    assert not ahead.exhausted


def test_the_engine_gets_what_the_loop_will_deliver_and_then_the_end():
    ahead = BatchLookahead(batch_requests([2, 2, 1]), itertools.count(7))
    ahead.start(slab_samples=2, min_ahead=10)
    assert [request.number for request in ahead] == [7, 8, 9]
    assert [ahead.next_batch().number for _ in range(3)] == [7, 8, 9]
    assert ahead.exhausted
    assert ahead.next_batch() is None


def test_a_larger_batch_ends_it_until_there_is_room():
    ahead = BatchLookahead(batch_requests([2, 5, 1]), itertools.count())
    assert ahead.largest_batch == 5
    ahead.start(slab_samples=2, min_ahead=10)
    assert [request.number for request in ahead] == [0]
    assert ahead.next_batch().number == 0
    assert ahead.next_batch() is None
    assert not ahead.exhausted
    ahead.start(slab_samples=ahead.largest_batch, min_ahead=10)
    assert [len(request.samples) for request in ahead] == [5, 1]


def test_an_engine_that_looks_too_far_is_told_instead_of_ending_early():
    ahead = BatchLookahead(batch_requests([1, 1, 1]), itertools.count())
    ahead.start(slab_samples=1, min_ahead=2)
    assert [next(ahead).number, next(ahead).number] == [0, 1]
    with pytest.raises(PenstockError, match="not drawn yet"):
        next(ahead)


# -- what is a dataset -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [TensorDataset(torch.zeros(2)), [(1, 2)], range(3), np.zeros(3), [1, "a.tar"]])
def test_what_has_indices_and_a_length_is_a_dataset(data):
    assert is_dataset(data)


@pytest.mark.parametrize("shards", ["a.tar", ["a.tar", "b.tar"], (), {"a.tar": 1}, iter(["a.tar"]), {"a.tar"}])
def test_paths_are_shards(shards):
    assert not is_dataset(shards)


def test_an_iterable_dataset_is_refused_with_the_reason():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(())

    with pytest.raises(SettingError, match="IterableDataset"):
        is_dataset(Stream())


# -- the work --------------------------------------------------------------------------------------------------

Pair = namedtuple("Pair", "image label")


class Numbers:
    """Samples of a given look; `odd` says what some of them are instead."""

    def __init__(self, odd=None):
        self.odd = odd or {}

    def __len__(self):
        return 100

    def __getitem__(self, index):
        value = self.odd.get(index, {"x": np.full(2, index, "float32"), "name": f"n{index}"})
        if isinstance(value, Exception):
            raise value
        return value


class Bulk(Numbers):
    def __init__(self, odd=None):
        super().__init__(odd)
        self.calls = []

    def __getitems__(self, indices):
        self.calls.append(list(indices))
        return [self[index] for index in indices]


def feed_of(dataset, **settings):
    settings = {"collate_fn": None, "on_error": "raise", **settings}
    return DatasetSource(DatasetSamples(dataset, 0, settings.pop("transform", None), False), own(100), **settings)


def run(feed, indices, epoch=0):
    """A task with all of these indices: the slab's arrays, and what did not fit."""
    feed.begin_epoch(epoch, 0)
    layout = feed.slab_layout(len(indices))
    memory = memoryview(bytearray(layout.size))
    rows = feed.block_source.task_rows(np.array(indices), np.arange(len(indices)), np.zeros(len(indices)))
    extras = feed.worker_program(layout).start(memoryview(b""), memory)(Task(0, 0, epoch, rows))
    return layout.arrays(memory), extras


def test_arrays_go_into_slots_and_strings_beside_them():
    arrays, extras = run(feed_of(Numbers()), [4, 7])
    assert arrays["sample['x']"].tolist() == [[4, 4], [7, 7]]
    assert extras == [(0, "sample['name']", "n4"), (1, "sample['name']", "n7")]


@pytest.mark.parametrize(
    ("odd", "says"),
    [
        ({"x": np.zeros(3, "float32"), "name": ""}, r"sample\['x'\] is float32\[3\] where the first .* float32\[2\]"),
        ({"x": np.zeros(2), "name": ""}, r"sample\['x'\] is float64\[2\] where the first sample had float32\[2\]"),
        ({"x": None, "name": ""}, r"sample\['x'\] is NoneType where the first sample had float32\[2\]"),
        ({"x": np.zeros(2, "float32")}, r"sample\['name'\] is missing, which the first sample had"),
        ({"x": np.zeros(2, "float32"), "name": "", "y": 1}, r"the first sample had no sample\['y'\]"),
        (7, r"is missing, which the first sample had"),
        (KeyError("gone"), "KeyError: 'gone'"),
    ],
)
def test_a_sample_that_is_not_like_the_first_is_bad_with_both_looks(odd, says):
    _, extras = run(feed_of(Numbers({5: odd})), [4, 5, 6])
    ((slot, name, error),) = [extra for extra in extras if extra[1] == BAD_SAMPLE]
    assert (slot, name, type(error)) == (1, BAD_SAMPLE, SampleError)
    with pytest.raises(SampleError, match=says):
        raise error


def test_the_users_traceback_comes_along():
    _, extras = run(feed_of(Numbers({5: ZeroDivisionError("there")})), [5])
    error = pickle.loads(pickle.dumps(extras[0][2]))
    assert "in __getitem__" in error.__notes__[0]


def test_the_first_good_sample_says_what_all_look_like():
    bad = {0: ValueError("bad")}
    arrays, _ = run(feed_of(Numbers(bad), on_error="skip"), [4])
    assert arrays["sample['x']"].tolist() == [[4, 4]]
    with pytest.raises(SampleError, match="ValueError: bad") as caught:
        run(feed_of(Numbers(bad)), [4])
    assert (caught.value.shard, caught.value.member) == ("Numbers", "0")


def test_a_dataset_that_has_getitems_is_asked_for_all_at_once():
    bulk = Bulk()
    arrays, _ = run(feed_of(bulk), [4, 7, 9])
    assert bulk.calls == [[4, 7, 9]]
    assert arrays["sample['x']"][:, 0].tolist() == [4, 7, 9]


def test_when_several_fail_only_the_bad_one_is_bad():
    _, extras = run(feed_of(Bulk({7: ValueError("no 7")})), [4, 7, 9])
    assert [(slot, error.reason) for slot, name, error in extras if name == BAD_SAMPLE] == [(1, "ValueError: no 7")]


def test_a_subset_has_getitems_only_if_what_is_in_it_does():
    assert not has_getitems(Subset(Numbers(), [1, 2]))
    assert has_getitems(Subset(Subset(Bulk(), [1, 2]), [0]))


def dice(sample, rng):
    return {"rng": rng.random(), "own": sample["x"][0]}


def test_a_transform_gets_dice_of_its_own_for_each_sample_and_epoch():
    def thrown(indices, epoch):
        return run(feed_of(Numbers(), transform=dice), indices, epoch)[0]["sample['rng']"].tolist()

    assert thrown([4, 7], 0) == thrown([7, 4], 0)[::-1]
    assert len({*thrown([4, 7], 0), *thrown([4, 7], 1)}) == 4


def test_shared_dice_follow_the_sample():
    def throw(*who):
        seed_global_rngs(*who)
        return random.random(), float(np.random.random()), float(torch.rand(()))

    with restore_global_rngs():
        thrown = {who: throw(*who) for who in itertools.product((0, 1), repeat=3)}
        assert all(throw(*who) == values for who, values in thrown.items())
    assert all(len(set(column)) == 8 for column in zip(*thrown.values(), strict=True))


def test_dice_lie_as_before_after_a_look():
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    with restore_global_rngs():
        seed_global_rngs(1, 2, 3)
        assert random.getstate() != before[0]
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before


class Opens(Numbers):
    """Opens its file at the first access, as datasets over HDF5 or LMDB do: then it cannot be pickled any more."""

    file = None

    def __getitem__(self, index):
        self.file = self.file or open(__file__)  # noqa: SIM115
        return super().__getitem__(index)


def test_a_dataset_that_opens_files_stays_closed_here_until_it_is_sent(monkeypatch):
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or type(sys)(__name__))
    monkeypatch.setattr(sys.modules[__name__], "Opens", Opens, raising=False)
    dataset = Opens()
    feed = DatasetSource(DatasetSamples(dataset, 0, None, in_processes=True), own(100), None, "raise")
    feed.begin_epoch(0, 0)
    with pytest.warns(ResourceWarning, match="unclosed file"):
        feed.slab_layout(4)
    assert dataset.file is None


def test_a_dataset_that_cannot_be_sent_is_refused_with_a_way_out():
    class Local(Numbers):
        pass

    feed = DatasetSource(DatasetSamples(Local(), 0, None, in_processes=True), own(100), None, "raise")
    feed.begin_epoch(0, 0)
    with pytest.raises(SettingError, match="cannot be sent to worker processes") as caught:
        feed.slab_layout(4)
    assert "executor='thread'" in caught.value.advice


# -- collate_fn ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on_error", "made", "bad"),
    [("raise", None, [0, 2]), ("skip", "n1 n3", [0, 2]), ("replace", "n1 n1 n3 n3", [0, 2])],
)
def test_collate_fn_gets_the_good_samples_as_the_policy_has_it(on_error, made, bad):
    odd = {0: ValueError("bad"), 2: ValueError("bad")}

    def join(samples):
        return " ".join(sample["name"] for sample in samples)

    _, extras = run(feed_of(Numbers(odd), collate_fn=join, on_error=on_error), [0, 1, 2, 3])
    assert [slot for slot, name, _ in extras if name == BAD_SAMPLE] == bad
    assert [value for _, name, value in extras if name != BAD_SAMPLE] == ([made] if made else [])


def test_a_collate_fn_that_fails_makes_its_samples_bad_each_by_itself():
    work = CollateProgram(DatasetSamples(Numbers(), 0, None, False), sum, "skip")
    task = Task(0, 0, 0, np.array([[0, 4], [1, 5]]))
    extras = work.start(memoryview(b""), memoryview(b""))(task)
    assert [(slot, name, error.stage) for slot, name, error in extras] == [
        (0, BAD_SAMPLE, "collate"),
        (1, BAD_SAMPLE, "collate"),
    ]
    assert extras[0][2] is not extras[1][2]
    assert "TypeError" in extras[0][2].reason


def test_with_a_collate_fn_there_is_nothing_to_learn_and_no_limit_to_a_batch():
    bulk = Bulk({0: ValueError("never asked for")})
    layout = feed_of(bulk, collate_fn=list).slab_layout(4)
    assert (layout.slots, layout.size) == ({}, SlabLayout({}, 1).size)
    assert layout.batch_size > 1 << 40
    assert bulk.calls == []


def test_random_samplers_throw_torchs_dice_where_a_dataloader_does():
    feed = DatasetSource(
        DatasetSamples(Numbers(), 0, None, False), SamplerOrder(RandomSampler(range(100)), BatchPlan(4)), None, "raise"
    )
    torch.manual_seed(3)
    first = next(feed.begin_epoch(0, 0).batches).samples.tolist()
    torch.manual_seed(3)
    assert list(itertools.islice(RandomSampler(range(100)), 4)) == first
