"""Several groups of shards with a weight each, through the whole loader."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tests.support.loader_helpers import loader_settings

import penstock
from penstock.errors import SettingError, ShardError
from penstock.testing import IMAGENET, REID, make_shards, sample_parts, tar_bytes

FIELDS = {"image": penstock.Image(".jpg", size=8)}
WEB, OWN = 36, 12


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Return the patterns of a larger and a smaller group of shards."""
    folder = tmp_path_factory.mktemp("mix")
    make_shards(folder / "web", REID, samples=WEB, shards=3, scale=0.05)
    make_shards(folder / "own", IMAGENET, samples=OWN, shards=2, scale=0.05)
    return f"{folder}/web/*.tar", f"{folder}/own/*.tar"


@pytest.fixture
def loader(sources):
    made = []

    def make(web=1, own=1, shards=None, batch_size=4, **settings):
        shards = shards if shards is not None else {sources[0]: web, sources[1]: own}
        defaults = {"shuffle": True, "seed": 5, "executor": "thread", "num_workers": 1, "block_bytes": 2048}
        made.append(penstock.Loader(shards, FIELDS, batch_size, **loader_settings(**(defaults | settings))))
        return made[-1]

    yield make
    for each in made:
        each.close()


def keys_of(batches):
    return [key for batch in batches for key in batch["__key__"]]


def own_keys():
    return {IMAGENET.key(number) for number in range(OWN)}


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("web", "own", "from_own"), [(3, 1, 12), (1, 1, 24), (1, 3, 36), (0.5, 0.7, 28)])
def test_an_epoch_has_each_group_by_its_weight_and_its_samples_equally_often(loader, web, own, from_own, shuffle):
    times = Counter(keys_of(loader(web, own, shuffle=shuffle)))
    assert times.total() == WEB + OWN
    own_times = [times[key] for key in own_keys()]
    assert sum(own_times) == from_own
    assert max(own_times) - min(own_times) <= 1


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_repeated_sample_has_its_own_bytes_each_time(loader, executor):
    by_key = {}
    for batch in loader(1, 3, executor=executor):
        for key, image in zip(batch["__key__"], batch["image"], strict=True):
            by_key.setdefault(key, set()).add(image.numpy().tobytes())
    assert {len(images) for images in by_key.values()} == {1}


def add_random(sample, rng):
    return {"image": sample["image"], "random": np.float64(rng.random())}


def test_a_repeated_sample_gets_new_random_numbers_which_are_the_same_in_every_run(loader):
    def random_numbers(batches):
        pairs = (pair for batch in batches for pair in zip(batch["__key__"], batch["random"], strict=True))
        return [(key, float(number)) for key, number in pairs]

    first = random_numbers(loader(1, 3, transform=add_random))
    assert len({number for _, number in first}) == len(first) == WEB + OWN
    assert random_numbers(loader(1, 3, transform=add_random, num_workers=2)) == first


def test_epochs_differ(loader):
    mixed = loader(3, 1)
    assert keys_of(mixed) != keys_of(mixed)


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_each_step_has_the_same_samples_on_any_number_of_ranks(loader, world_size):
    def steps(ranks):
        each = [list(loader(2, 3, batch_size=8 // ranks, rank=rank, world_size=ranks)) for rank in range(ranks)]
        return [sorted(keys_of(step)) for step in zip(*each, strict=True)]

    assert steps(world_size) == steps(1)
    assert len(steps(1)) == (WEB + OWN) // 8


def test_every_position_of_an_epoch_gives_exactly_the_rest(loader):
    whole = loader(1, 3)
    states, keys = [json.loads(json.dumps(whole.state_dict()))], []
    for batch in whole:
        keys.append(batch["__key__"])
        states.append(json.loads(json.dumps(whole.state_dict())))
    resumed = loader(1, 3)
    assert len(states) == 13
    for position, state in enumerate(states):
        resumed.load_state_dict(state)
        assert [batch["__key__"] for batch in resumed] == keys[position:]


def test_another_weight_is_refused_by_name(loader):
    with pytest.raises(SettingError, match=r"made with weights '3:1', this loader has '3:1.5'"):
        loader(3, 1.5).load_state_dict(loader(3, 1).state_dict())


def test_a_state_of_a_mixture_is_refused_for_the_same_shards_in_one_list(loader, sources):
    with pytest.raises(SettingError, match=r"made with weights '3:1', this loader has '1'"):
        loader(shards=list(sources)).load_state_dict(loader(3, 1).state_dict())


def test_a_state_with_the_same_weights_of_other_groups_is_refused(loader, sources):
    exchanged = loader(shards={sources[1]: 3, sources[0]: 1})
    with pytest.raises(SettingError, match="shards or their samples are not the same"):
        exchanged.load_state_dict(loader(3, 1).state_dict())


@pytest.mark.parametrize("max_samples", [None, 10])
def test_a_mapping_with_one_entry_has_the_order_of_a_list(loader, sources, max_samples):
    plain, alone = (loader(shards=s, max_samples=max_samples) for s in (sources[0], {sources[0]: 17}))
    alone.load_state_dict(plain.state_dict())
    assert keys_of(alone) == keys_of(plain)


def test_max_samples_are_divided_by_the_weights(loader):
    keys = keys_of(loader(1, 1, max_samples=10))
    assert (len(keys), len(own_keys() & set(keys))) == (10, 5)


@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf"), "3", None, True])
def test_a_weight_that_is_not_a_number_above_0_is_refused_with_its_group(loader, sources, weight):
    with pytest.raises(SettingError, match="not a number above 0") as caught:
        loader(1, weight)
    assert sources[1] in str(caught.value)


def test_a_weight_too_small_for_one_sample_is_refused(loader, sources):
    with pytest.raises(SettingError, match="an epoch of 48 has none of its samples") as caught:
        loader(10_000, 1)
    assert sources[1] in str(caught.value)


def test_an_empty_mapping_is_refused(loader):
    with pytest.raises(SettingError, match="a mixture needs groups of shards"):
        loader(shards={})


def test_a_pattern_without_a_match_is_refused(loader, sources, tmp_path):
    with pytest.raises(SettingError, match="no shard matches"):
        loader(shards={sources[0]: 1, f"{tmp_path}/*.tar": 1})


def test_a_shard_in_two_groups_is_refused_by_name(loader, sources, tmp_path):
    link = tmp_path / "same.tar"
    original = sources[1].replace("*.tar", "")
    first = sorted(path for path in Path(original).iterdir() if path.suffix == ".tar")[0]
    link.symlink_to(first)
    with pytest.raises(SettingError, match="is in two groups") as caught:
        loader(shards={sources[1]: 1, str(link): 2})
    assert caught.value.shard == str(link)
    assert sources[1] in caught.value.reason


def test_a_group_without_a_complete_sample_is_named(loader, sources, tmp_path):
    parts = sample_parts(REID, 0, scale=0.05)
    path = tmp_path / "lone.tar"
    path.write_bytes(tar_bytes([("a.json", parts[".json"])]))
    with pytest.raises(ShardError, match="has no whole sample") as caught:
        loader(shards={sources[0]: 1, str(path): 1}, on_error="skip")
    assert str(path) in caught.value.reason
