"""The three examples at toy size, with and without the habits of the reports."""

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
"""Settings below toy size. In distill a shard has one batch, so that workers deliver in the order of the shards."""
WITHIN = {"distill": 5e-3, "reid": 1e-5, "segment": 1e-2}
"""Relative tolerance of losses between decoders; the images of reid are not shrunk, so their pixels are the same."""
TRAINED = {}
"""Losses of the trainings that were run already, by their arguments."""
MEAN_DIFFERENCE = 4.0
"""Mean difference of the pixel values (0 to 255) between an image shrunk by Pillow and by Penstock."""


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Return a function that returns the shards of an example, which it makes at its first call."""
    folders = {}

    def shards_of(name):
        if name not in folders:
            example, settings = load_example(name)
            folders[name] = example.prepare(settings, tmp_path_factory.mktemp(name))
        return folders[name]

    return shards_of


def load_example(name, **more_settings):
    """Return the script of an example, and its tiny settings with these changes."""
    example = importlib.import_module(f"examples.{name}.train")
    changed = {**TINY[name], "log_every": 1, **more_settings}
    return example, read_settings(example.Config, example.CONFIG, toy=True, changed=changed)


def comparable(example):
    """Return all habits except that of another sampler, which draws other samples."""
    return tuple(habit for habit in example.HABITS if habit != "sampler")


def losses(name, shards, habits, **more_settings):
    """Return the printed loss of every step; a training that several tests need runs once."""
    key = (name, tuple(habits), *more_settings.items())
    if key not in TRAINED:
        example, settings = load_example(name, **more_settings)
        printed = example.train(example.make_loader(settings, shards(name), habits), settings, habits)
        TRAINED[key] = [each["loss"] for each in printed]
    return TRAINED[key]


@pytest.mark.parametrize("name", EXAMPLES)
def test_losses_are_the_same_with_the_habits_of_the_report(name, shards):
    example, _ = load_example(name)
    default, before = losses(name, shards, ()), losses(name, shards, comparable(example))
    assert len(default) == len(before) > 3
    assert default == pytest.approx(before, rel=WITHIN[name])
    assert min(default) < default[0]


@pytest.mark.parametrize("name", EXAMPLES)
def test_habits_of_the_loop_do_not_change_the_losses(name, shards):
    example, _ = load_example(name)
    habits = [habit for habit in example.HABITS if habit in ("copies", "batch", "clip", "log")]
    assert losses(name, shards, habits) == pytest.approx(losses(name, shards, ()), rel=1e-4)


def test_sixteen_bits_and_a_fixed_loss_scale_give_similar_losses(shards):
    half = losses("segment", shards, (), precision="fp16", loss_scale=512.0)
    assert half == pytest.approx(losses("segment", shards, ("precision",)), rel=5e-3)


@pytest.mark.parametrize("name", EXAMPLES)
def test_both_loaders_deliver_the_same_samples_in_the_same_order(name, shards):
    default, before = batches(name, shards, ()), batches(name, shards, ("loader",))
    assert len(default) == len(before) > 3
    for batch, other in zip(default, before, strict=True):
        for part, expected in other.items():
            if expected.ndim < 4:
                assert torch.equal(batch[part], expected)
            else:
                assert (pixels(batch[part]) - pixels(expected)).abs().mean() < MEAN_DIFFERENCE


def batches(name, shards, habits):
    example, settings = load_example(name)
    loader = example.make_loader(settings, shards(name), habits)
    return [{part: each.clone() for part, each in batch.items() if part != "__key__"} for batch in loader]


def pixels(images):
    return images * 255 if images.is_floating_point() else images.float()


@pytest.mark.slow
def test_the_script_runs_with_all_habits(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    config = tmp_path / "config.yaml"
    config.write_text((ROOT / "examples/reid/config.yaml").read_text().replace("samples: 480", "samples: 96"))
    command = [sys.executable, "-m", "examples.reid.train", "--data", tmp_path, "--config", config, "--toy", "--before"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.count("triplet") == 3
    assert done.stderr.count("INFO: loss=") == 12
