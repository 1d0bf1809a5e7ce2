"""Resuming at a saved position delivers exactly the rest, with any number of workers and ranks."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter

import pytest
from tests.support.loader_helpers import loader_settings

import penstock
from penstock.errors import SettingError
from penstock.testing import REID, make_shards, sample_parts, tar_bytes

SAMPLES = 30
FIELDS = {"image": penstock.Image(".jpg", size=8), "meta": penstock.Json(".json")}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return make_shards(tmp_path_factory.mktemp("reid"), REID, samples=SAMPLES, shards=3, scale=0.05)


@pytest.fixture
def loader(shards):
    made = []

    def make(batch_size=4, paths=None, **settings):
        settings = {
            "shuffle": True, "seed": 9, "executor": "thread", "num_workers": 1, "block_bytes": 1024, **settings,
        }  # fmt: skip
        made.append(penstock.Loader(paths or shards, FIELDS, batch_size, **loader_settings(**settings)))
        return made[-1]

    yield make
    for each in made:
        each.close()


def through_json(state):
    return json.loads(json.dumps(state))


def contents(batches):
    return [(batch["__key__"], batch["image"].numpy().tobytes(), batch["meta"]) for batch in batches]


def take(loader, count):
    """Return the first batches of an epoch, and the state after them."""
    iterator = iter(loader)
    batches = contents(next(iterator) for _ in range(count))
    state = through_json(loader.state_dict())
    iterator.close()
    return batches, state


def test_every_position_of_an_epoch_is_followed_by_exactly_the_rest(loader):
    whole = loader()
    list(whole)
    states, batches = [through_json(whole.state_dict())], []
    for batch in whole:  # epoch 1
        batches += contents([batch])
        states.append(through_json(whole.state_dict()))
    after = [batch["__key__"] for batch in whole]
    resumed = loader()
    assert len(states) == 9
    for position, state in enumerate(states):
        resumed.load_state_dict(state)
        assert contents(resumed) == batches[position:]
    assert [batch["__key__"] for batch in resumed] == after


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_resumed_epoch_can_be_resumed_again(loader, executor):
    batches, state = [], loader().state_dict()
    for step in range(1, 4):
        resumed = loader(executor=executor, num_workers=step)
        resumed.load_state_dict(state)
        some, state = take(resumed, step)
        batches += some
        resumed.close()
    last = loader()
    last.load_state_dict(state)
    assert batches + contents(last) == contents(loader())


def test_the_state_can_be_read_after_leaving_an_epoch(loader):
    left = loader()
    for number, _ in enumerate(left):
        if number == 2:
            break
    left.load_state_dict(through_json(left.state_dict()))
    assert contents(left) == contents(loader())[3:]


def test_another_batch_size_resumes_at_the_same_sample(loader):
    _, state = take(loader(batch_size=4), 3)
    other = loader(batch_size=7)
    other.load_state_dict(state)
    order = [key for batch in loader() for key in batch["__key__"]]
    assert [key for batch in other for key in batch["__key__"]] == order[12:]


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 4), (4, 2)])
def test_another_number_of_ranks_resumes_at_the_same_step(loader, before, after):
    def rank(number, world_size):
        return loader(batch_size=8 // world_size, rank=number, world_size=world_size, max_samples=28)

    done, states = zip(*(take(rank(number, before), 2) for number in range(before)), strict=True)
    assert all(state == states[0] for state in states)
    keys = [key for batches in done for batch in batches for key in batch[0]]
    for number in range(after):
        resumed = rank(number, after)
        resumed.load_state_dict(states[0])
        keys += [key for batch in resumed for key in batch["__key__"]]
    assert len(keys) == len(set(keys)) == 28


GROUPED = {"shuffle": False}, {"drop_last": True}, {"filter": lambda sample: sample.key[-1] not in "37"}, {}, "mix"


@pytest.mark.parametrize("settings", GROUPED, ids=["unshuffled", "drop_last", "filter", "default", "mix"])
@pytest.mark.parametrize(("before", "after"), [(8, 6), (6, 8), (3, 5), (1, 3)])
def test_a_state_of_any_number_of_ranks_is_resumed_on_any_other_one(loader, shards, before, after, settings):
    if settings == "mix":
        settings = {"paths": {str(shards[0]): 2, str(shards[1]): 1, str(shards[2]): 1}}

    def rank(number, world_size):
        return loader(batch_size=1, rank=number, world_size=world_size, **settings)

    one = loader(**settings)
    samples = one._source.order(0).samples.tolist()
    keys_of_epoch = Counter(one._source.keys(one._source.order(0).samples))
    done, states = zip(*(take(rank(number, before), 2) for number in range(before)), strict=True)
    assert all(state == states[0] for state in states)
    keys = [key for batches in done for batch in batches for key in batch[0]]
    following = []
    for number in range(after):
        resumed = rank(number, after)
        resumed.load_state_dict(states[0])
        keys += [
            key
            for batch in resumed
            for key, again in zip(batch["__key__"], batch["__padding__"].tolist(), strict=True)
            if not again
        ]
        following.append(resumed.state_dict())
    dropped = (len(samples) - 2 * before) % after if settings == {"drop_last": True} else 0
    assert Counter(keys) <= keys_of_epoch
    assert len(keys) == len(samples) - dropped
    expected = {1: 64, 3: 66, 5: 65, 6: 66, 8: 64}[after]
    assert [(state["epoch"], state["lanes"]) for state in following] == [(1, expected)] * after


def test_the_rest_of_an_epoch_is_ended_with_the_lanes_of_its_state(loader):
    batches, state = take(loader(lanes=7), 3)
    assert state["lanes"] == 7
    resumed = loader(lanes=5)
    resumed.load_state_dict(state)
    some, state = take(resumed, 2)
    assert state["lanes"] == 7
    resumed = loader(lanes=5)
    resumed.load_state_dict(state)
    assert batches + some + contents(resumed) == contents(loader(lanes=7))
    assert resumed.state_dict()["lanes"] == 5
    whole = loader(lanes=5)
    whole.set_epoch(1)
    assert contents(resumed) == contents(whole)


def test_set_epoch_after_loading_a_state_changes_nothing(loader):
    _, state = take(loader(), 3)
    resumed = loader()
    resumed.load_state_dict(state)
    resumed.set_epoch(0)
    resumed.set_epoch(0)
    assert resumed.state_dict() == state
    assert contents(resumed) == contents(loader())[3:]


def test_another_epoch_after_loading_a_state_starts_that_epoch(loader):
    _, state = take(loader(), 3)
    resumed, whole = loader(), loader()
    resumed.load_state_dict(state)
    resumed.set_epoch(1)
    whole.set_epoch(1)
    assert contents(resumed) == contents(whole)


def test_skipped_blocks_are_not_read(loader, monkeypatch):
    def blocks_read(resumed):
        """Return the blocks that the engine reads; the layout is made before, from the first sample."""
        block_source = resumed._source.block_source
        read_block, blocks = block_source.read_block, []
        layout = resumed._source.slab_layout(4)
        monkeypatch.setattr(resumed._source, "slab_layout", lambda batch_size: layout)
        monkeypatch.setattr(
            block_source, "read_block", lambda block, into: blocks.append(block) or read_block(block, into)
        )
        list(resumed)
        return blocks

    whole = loader()
    source = whole._source
    rest = source.order(0).samples[20:]
    needed = set(source.block_source.blocks_of(rest).tolist())
    resumed = loader()
    resumed.load_state_dict({**whole.state_dict(), "position": 20})
    read = blocks_read(resumed)
    assert sorted(read) == sorted(needed)
    assert len(needed) < len(source.block_source.blocks)
    assert sorted(blocks_read(whole)) == list(range(len(source.block_source.blocks)))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seed": 10}, "seed 9, this loader has 10"),
        ({"shuffle": False}, "shuffle True, this loader has False"),
        ({"block_bytes": 2048}, "block_bytes 1024, this loader has 2048"),
        ({"max_samples": 20}, "samples 30, this loader has 20"),
    ],
)
def test_a_changed_setting_is_refused_by_name(loader, changed, message):
    state = loader().state_dict()
    with pytest.raises(SettingError, match=message):
        loader(**changed).load_state_dict(state)


def test_other_shards_are_refused(loader, tmp_path, shards):
    other = make_shards(tmp_path, REID, samples=SAMPLES, shards=3, scale=0.05, seed=1)
    for paths in (other, [shards[1], shards[0], shards[2]]):
        with pytest.raises(SettingError, match="the shards or their samples are not the same"):
            loader(paths=paths).load_state_dict(loader().state_dict())


def test_shards_of_the_same_keys_and_size_cut_into_other_blocks_are_refused(loader, tmp_path):
    image = sample_parts(REID, 0, seed=0, scale=0.05)[".jpg"]
    paths = []
    for name, sizes in (("a", (100, 100, 2000, 100)), ("b", (100, 2000, 100, 100))):
        members = []
        for number, size in enumerate(sizes):
            members += [(f"{number}.jpg", image), (f"{number}.json", b'"' + b"x" * size + b'"')]
        paths.append(tmp_path / f"{name}.tar")
        paths[-1].write_bytes(tar_bytes(members))
    one, two = (loader(paths=path, block_bytes=1200) for path in paths)
    assert paths[0].stat().st_size == paths[1].stat().st_size
    with pytest.raises(SettingError, match="the shards or their samples are not the same"):
        two.load_state_dict(one.state_dict())


def test_a_state_is_accepted_for_moved_shards(loader, tmp_path, shards):
    moved = []
    for shard in shards:
        moved.append(tmp_path / f"moved-{shard.name}")
        moved[-1].write_bytes(shard.read_bytes())
    batches, state = take(loader(), 2)
    resumed = loader(paths=moved)
    resumed.load_state_dict(state)
    assert batches + contents(resumed) == contents(loader())


TRAINING = """
import json, os, sys
import penstock

shards, folder, die_at = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
fields = {"image": penstock.Image(".jpg", size=8)}
loader = penstock.Loader(shards, fields, 4, shuffle=True, seed=9, num_workers=2, device="numpy",
                         engine=penstock.EngineOptions("process"), reading=penstock.ReadOptions(block_bytes=1024))
saved = os.path.join(folder, "state.json")
if os.path.exists(saved):
    loader.load_state_dict(json.load(open(saved)))
for number, batch in enumerate(loader):
    with open(saved + ".new", "w") as file:
        json.dump({**loader.state_dict(), "keys": batch["__key__"]}, file)
    os.replace(saved + ".new", saved)
    print(*batch["__key__"], flush=True)
    if number == die_at:
        sys.stdin.read()  # killed here
"""


def test_a_killed_training_loses_and_repeats_no_sample(tmp_path, shards, loader):
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    keys = []
    for die_at in (1, 2, 99):
        command = [sys.executable, script, json.dumps([str(shard) for shard in shards]), tmp_path, str(die_at)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as training:
            for _ in range(die_at + 1):
                line = training.stdout.readline()
                if not line:
                    break
                keys += line.split()
            if die_at < 99:
                os.kill(training.pid, signal.SIGKILL)
            assert training.wait() == (-signal.SIGKILL if die_at < 99 else 0)
    assert keys == [key for batch in loader() for key in batch["__key__"]]


def test_a_state_loaded_after_set_epoch_goes_before_it(loader):
    loaded = loader()
    iterator = iter(loaded)
    next(iterator)
    state = loaded.state_dict()
    rest = contents(iterator)
    iterator = iter(loaded)
    next(iterator)
    loaded.set_epoch(7)
    loaded.load_state_dict(state)
    iterator.close()
    assert loaded.state_dict() == state
    assert contents(loaded) == rest
