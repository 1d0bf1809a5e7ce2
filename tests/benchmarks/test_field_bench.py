"""The field bench: steps of unchanged scripts are timed from outside, and the truth follows what was measured."""

import array
import json
import os
import subprocess
import sys
import tarfile
from dataclasses import asdict

import pytest
from benchmarks.field import score, synthetic
from benchmarks.field.__main__ import _joined
from benchmarks.field.manifest import CPU_SETTINGS, DATA, GPU_SETTINGS, SETTINGS
from benchmarks.field.run import STEP_CLOCK, Result, _as_script, _steady_rate, missing
from PIL import Image

SCRIPT = """
import sys
import torch
from torch.utils.data import DataLoader, Dataset

class Numbered(Dataset):
    def __len__(self):
        return 320

    def __getitem__(self, i):
        return torch.tensor([float(i)])

layer = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(layer.parameters(), 0.001)
seen = []
for batch in DataLoader(Numbered(), 4):
    layer(batch).sum().backward()
    optimizer.step()
    seen.append(batch[0].item())
with torch.no_grad():
    evaluated = [batch[0].item() for batch in DataLoader(Numbered(), 80)]
print(len(seen), len(set(seen)), len(set(evaluated)))
"""
NAME = "makemore/mlp-0-workers"
RESULT = Result(
    name=NAME,
    rate=10.0,
    watched_cost=0.002,
    other_cores=0.1,
    gains={"2 workers": 0.4, "cached": 0.9},
    verdict="findings",
    sentence="There is no overlap.",
    findings=("no_overlap",),
    gain=0.5,
    low=0.3,
    high=1.0,
    planned=("num_workers=2",),
)


def changed(**fields):
    return Result(**{**RESULT.__dict__, **fields})


def run_script(tmp_path, **environment):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    times = tmp_path / "steps.f64"
    settings = os.environ | {"PYTHONPATH": str(STEP_CLOCK), "FIELD_STEPS": str(times), **environment}
    done = subprocess.run([sys.executable, str(script)], env=settings, capture_output=True, text=True)
    steps = array.array("d")
    steps.frombytes(times.read_bytes())
    return done, steps


@pytest.mark.slow
def test_the_step_clock_times_every_step_of_an_unchanged_script(tmp_path):
    done, steps = run_script(tmp_path)
    assert done.stdout.split() == ["80", "80", "4"]
    assert len(steps) == 80
    assert list(steps) == sorted(steps)


@pytest.mark.slow
def test_with_data_for_free_training_repeats_a_batch_and_evaluation_does_not(tmp_path):
    done, steps = run_script(tmp_path, FIELD_CACHED="1")
    assert done.stdout.split() == ["80", "1", "4"]
    assert len(steps) == 80


@pytest.mark.slow
def test_the_settings_of_a_plan_replace_those_of_the_script(tmp_path):
    done, steps = run_script(tmp_path, FIELD_LOADER=json.dumps({"batch_size": 8, "prefetch_factor": 2, "unknown": 1}))
    assert done.stdout.split() == ["40", "40", "40"]
    assert len(steps) == 40


@pytest.mark.slow
def test_the_step_clock_ends_a_script_as_by_ctrl_c(tmp_path):
    done, steps = run_script(tmp_path, FIELD_SECONDS="0")
    assert "KeyboardInterrupt" in done.stderr
    assert len(steps) == 32


def test_the_rate_is_that_of_the_steps_after_a_slow_start(tmp_path):
    times = tmp_path / "steps.f64"
    slow, quick = [float(i) for i in range(10)], [9 + 0.1 * i for i in range(1, 201)]
    times.write_bytes(array.array("d", slow + quick).tobytes())
    assert _steady_rate(times, "") == pytest.approx(10)


def test_a_run_of_few_steps_is_no_measurement(tmp_path):
    with pytest.raises(RuntimeError, match="only 0 steps"):
        _steady_rate(tmp_path / "none.f64", "train.py")


def test_a_notebook_becomes_a_script_with_our_parameters(tmp_path):
    cells = [
        {"cell_type": "markdown", "source": ["# Title"]},
        {"cell_type": "code", "source": ["# parameters\n", "training_urls = 'https://far.away'"]},
        {"cell_type": "code", "source": ["%matplotlib inline\n", "!mkdir x\n", "print(training_urls)"]},
    ]
    (tmp_path / "train.ipynb").write_text(json.dumps({"cells": cells}))
    for shard in range(3):
        (tmp_path / f"train-{shard:06d}.tar").touch()
    script = _as_script(tmp_path / "train.ipynb", tmp_path)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.stdout.strip() == f"{tmp_path}/train-{{000000..000002}}.tar"


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (RESULT, "right"),
        (changed(findings=("ipc_copy",)), "wrong"),
        (changed(findings=(), verdict="healthy"), "missed"),
        (changed(verdict="undetermined", findings=()), "undetermined"),
        (changed(gains={"2 workers": 0.01, "cached": 0.04}), "false finding"),
        (changed(gains={"2 workers": 0.01, "cached": 0.04}, findings=(), verdict="healthy"), "right"),
        (changed(findings=("noisy_neighbour",), other_cores=1.5), "void"),
        (changed(gains={"2 workers": -0.3, "cached": 0.9}, other_cores=1.5), "void"),
        (changed(findings=("noisy_neighbour",), other_cores=0.2), "wrong"),
    ],
)
def test_the_outcome_follows_the_measured_gains(result, expected):
    assert score.outcome(result) == expected


def test_what_a_script_uses_already_must_not_be_proposed():
    name = "timm/resnet50-16"
    assert score.proposed_in_use(changed(name=name, planned=("channels_last=True", "num_workers=8"))) == [
        "channels_last=true"
    ]


def test_a_finding_is_compared_with_the_change_that_removes_its_cause():
    few = changed(name="makemore/mlp-1-workers", findings=("decode_bound",), gains={"2 workers": 0.4, "cached": 0.9})
    assert score.measured(few) == 0.9
    assert score.measured(changed(findings=("ipc_copy",))) == 0.9


def test_every_setting_has_its_data_and_a_name_of_its_own():
    assert len({setting.full_name for setting in SETTINGS}) == len(SETTINGS)
    assert len(SETTINGS) >= 40
    assert all(setting.data in DATA for setting in SETTINGS if setting.data)
    assert not any(setting.gpu for setting in CPU_SETTINGS)
    assert all(setting.gpu for setting in GPU_SETTINGS)
    for setting in SETTINGS:
        for args in (setting.args, *(each.args or "" for each in setting.alternatives)):
            args.format(data="d", out="o")


def test_another_number_of_workers_changes_the_arguments():
    for setting in SETTINGS:
        for alternative in setting.alternatives:
            assert alternative.cached or alternative.args != setting.args, setting.full_name


def test_a_setting_whose_script_is_not_there_is_skipped_by_name(tmp_path):
    assert missing(CPU_SETTINGS[0], tmp_path) == f"karpathy/nanoGPT is not in {tmp_path}"


def test_every_image_of_the_training_has_several_names(tmp_path):
    synthetic.image_folder(tmp_path, train=20, height=24, width=32, links=3)
    files = sorted((tmp_path / "train").glob("*/*.jpg"))
    assert len(files) == 60
    assert len({file.stat().st_ino for file in files}) == 20
    assert len({file.parent for file in files}) == synthetic.CLASSES
    with Image.open(files[0]) as image:
        assert image.size == (32, 24)
    assert len(list((tmp_path / "val").glob("*/*.jpg"))) == 4 * synthetic.CLASSES


def test_shards_hold_an_image_and_a_class_per_sample(tmp_path):
    synthetic.image_shards(tmp_path, shards=2, per_shard=3, height=24, width=32)
    for shard in sorted(tmp_path.glob("train-*.tar")):
        with tarfile.open(shard) as tar:
            assert [name.rsplit(".")[1] for name in tar.getnames()] == ["jpg", "cls"] * 3


def test_joined_results_equal_those_that_were_written(tmp_path):
    files = [tmp_path / "1.json", tmp_path / "2.json"]
    for file in files:
        file.write_text(json.dumps([asdict(RESULT)]))
    assert _joined(files) == [RESULT, RESULT]
