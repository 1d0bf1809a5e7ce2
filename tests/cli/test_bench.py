import os
import subprocess
import sys

import pytest

from penstock.testing import REID, SA1B, make_shards

pytest.importorskip("torch")


@pytest.mark.slow
def test_bench_races_both_loaders_on_shards_and_says_what_it_guessed(penstock, tmp_path):
    make_shards(tmp_path / "s", SA1B, samples=12, shards=2, order="grouped", scale=0.05)
    ran = penstock("bench", tmp_path / "s", "--rounds", 1, "--workers", 2, "--batch-size", 2, "--max-samples", 12)
    assert ran.code == 0, ran.err
    assert "12 samples in 2 shards (as they lie), batches of 2" in ran.out
    assert "penstock" in ran.out
    assert "1.00×" in ran.out
    assert "Too short to judge" in ran.out
    assert "--field image=.jpg:224 --field features=_features.npz:features" in ran.err


@pytest.mark.slow
def test_bench_json_has_every_trial_and_nothing_else_on_stdout(penstock, tmp_path):
    make_shards(tmp_path / "s", REID, samples=24, shards=2, scale=0.5)
    options = ("--field", "picture=.jpg:32", "--rounds", 1, "--workers", 1, "--batch-size", 4, "--seconds", 0.1)
    facts = penstock("bench", tmp_path / "s", *options, "--json").json
    assert facts["course"]["fields"][0]["name"] == "picture"
    assert {(trial["contestant"], trial["samples"]) for trial in facts["trials"]} == {
        ("penstock", facts["course"]["samples"]),
        ("plain DataLoader", facts["course"]["samples"]),
    }
    assert {trial["keys_digest"] for trial in facts["trials"]} == {facts["course"]["keys_digest"]}
    assert all(trial["peak_memory_bytes"] > 1e7 and trial["cpu_s_per_sample"] > 0 for trial in facts["trials"])
    rates = {row["contestant"]: row["rate"] for row in facts["standings"]}
    assert facts["ratio"] == pytest.approx(rates["penstock"] / rates["plain DataLoader"])


def test_bench_without_torch_says_what_to_install(tmp_path):
    make_shards(tmp_path, REID, samples=2, scale=0.5)
    code = "import sys; sys.modules['torch'] = None; from penstock.cli.main import main; main()"
    command = [sys.executable, "-c", code, "bench", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, env=dict(os.environ))
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "pip install 'penstock[torch]'" in ran.stderr


def test_bench_with_a_field_that_no_sample_has_is_refused(here, tmp_path):
    make_shards(tmp_path, REID, samples=4, scale=0.5)
    ran = here("bench", tmp_path, "--field", "image=.png:32")
    assert ran.code == 3
    assert ".png" in ran.err


def test_bench_with_a_malformed_field_is_wrong_usage(here, tmp_path):
    make_shards(tmp_path, REID, samples=4, scale=0.5)
    ran = here("bench", tmp_path, "--field", "image")
    assert ran.code == 2
    assert "NAME=SUFFIX" in ran.err


def test_bench_help_teaches(here):
    ran = here("bench", "--help")
    assert ran.code == 0
    assert "penstock bench sa1b/ --field image=.jpg:1024" in ran.out
    assert all(len(line) <= 80 for line in ran.out.splitlines())
