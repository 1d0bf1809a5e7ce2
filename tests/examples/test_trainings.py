"""The three worked examples at toy size: for real, and both ways."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from examples.common.settings import read_settings

ROOT = Path(__file__).parents[2]
EXAMPLES = ("distill", "reid", "segment")
TINY = {
    "distill": {"samples": 48, "shards": 6, "shuffle": False},
    "reid": {"samples": 192, "people": 16, "max_norm": 1.0},
    "segment": {"samples": 32, "shuffle": False, "max_norm": 1.0},
}
"""Smaller than toys. Of distill a shard has one batch, so that its workers deliver in the order of the shards."""
WITHIN = {"distill": 5e-3, "reid": 1e-5, "segment": 1e-2}
"""Losses, where pictures are decoded in another way; those of reid are not shrunk, so their pixels are the same."""
TRAINED = {}
"""Losses by what was asked for."""
GREYS = 4.0
"""Between a picture shrunk by Pillow and by us, on the mean."""


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Of each example, made when first asked for."""
    made = {}

    def of(name):
        if name not in made:
            example, settings = loaded(name)
            made[name] = example.prepare(settings, tmp_path_factory.mktemp(name))
        return made[name]

    return of


def loaded(name, **others):
    example = importlib.import_module(f"examples.{name}.train")
    changed = {**TINY[name], "log_every": 1, **others}
    return example, read_settings(example.Config, example.CONFIG, toy=True, changed=changed)


def comparable(example):
    """All habits but another sampler, which draws other samples."""
    return tuple(habit for habit in example.HABITS if habit != "sampler")


def losses(name, shards, habits, **others):
    """As printed, step by step; what several tests ask for is trained once."""
    asked = (name, tuple(habits), *others.items())
    if asked not in TRAINED:
        example, settings = loaded(name, **others)
        printed = example.train(example.make_loader(settings, shards(name), habits), settings, habits)
        TRAINED[asked] = [each["loss"] for each in printed]
    return TRAINED[asked]


@pytest.mark.parametrize("name", EXAMPLES)
def test_losses_are_the_same_with_the_habits_of_the_report(name, shards):
    example, _ = loaded(name)
    default, before = losses(name, shards, ()), losses(name, shards, comparable(example))
    assert len(default) == len(before) > 3
    assert default == pytest.approx(before, rel=WITHIN[name])
    assert min(default) < default[0]


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_a_loop_does_at_every_step_changes_no_loss(name, shards):
    example, _ = loaded(name)
    habits = [habit for habit in example.HABITS if habit in ("copies", "batch", "clip", "log")]
    assert losses(name, shards, habits) == pytest.approx(losses(name, shards, ()), rel=1e-4)


def test_sixteen_bits_and_a_fixed_loss_scale_train_alike(shards):
    half = losses("segment", shards, (), precision="fp16", loss_scale=512.0)
    assert half == pytest.approx(losses("segment", shards, ("precision",)), rel=5e-3)


@pytest.mark.parametrize("name", EXAMPLES)
def test_both_ways_have_the_same_samples_in_the_same_order(name, shards):
    ours, theirs = batches(name, shards, ()), batches(name, shards, ("loader",))
    assert len(ours) == len(theirs) > 3
    for mine, other in zip(ours, theirs, strict=True):
        for part, expected in other.items():
            if expected.ndim < 4:
                assert torch.equal(mine[part], expected)
            else:
                assert (greys(mine[part]) - greys(expected)).abs().mean() < GREYS


def batches(name, shards, habits):
    example, settings = loaded(name)
    loader = example.make_loader(settings, shards(name), habits)
    return [{part: each.clone() for part, each in batch.items() if part != "__key__"} for batch in loader]


def greys(pictures):
    return pictures * 255 if pictures.is_floating_point() else pictures.float()


@pytest.mark.slow
def test_the_script_runs_with_all_habits(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    config = tmp_path / "config.yaml"
    config.write_text((ROOT / "examples/reid/config.yaml").read_text().replace("samples: 480", "samples: 96"))
    command = [sys.executable, "-m", "examples.reid.train", "--data", tmp_path, "--config", config, "--toy", "--before"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.count("triplet") == 3
    assert done.stderr.count("INFO: loss=") == 12
