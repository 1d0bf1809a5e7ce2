import os
import subprocess
import sys

import pytest

from penstock.testing import REID, SA1B, make_shards

pytest.importorskip("torch")


@pytest.mark.slow
def test_bench_runs_both_loaders_and_prints_the_guessed_fields(penstock, tmp_path):
    make_shards(tmp_path / "s", SA1B, samples=12, shards=2, order="grouped", scale=0.05)
    ran = penstock("bench", tmp_path / "s", "--repeats", 1, "--num-workers", 2, "--batch-size", 2, "--max-samples", 12)
    assert ran.code == 0, ran.err
    assert "12 samples in 2 shards (whole shards), batches of 2" in ran.out
    assert "penstock" in ran.out
    assert "1.00×" in ran.out
    assert "Too short to judge" in ran.out
    assert "--field image=.jpg:224 --field features=_features.npz:features" in ran.err


@pytest.mark.slow
def test_bench_json_contains_every_run_and_is_alone_on_stdout(penstock, tmp_path):
    make_shards(tmp_path / "s", REID, samples=24, shards=2, scale=0.5)
    options = ("--field", "photo=.jpg:32", "--repeats", 1, "--num-workers", 1, "--batch-size", 4, "--duration", 0.1)
    facts = penstock("bench", tmp_path / "s", *options, "--json").json
    assert facts["workload"]["fields"][0]["name"] == "photo"
    assert {(run["loader"], run["samples"]) for run in facts["runs"]} == {
        ("penstock", facts["workload"]["samples"]),
        ("plain DataLoader", facts["workload"]["samples"]),
    }
    assert {run["keys_digest"] for run in facts["runs"]} == {facts["workload"]["keys_digest"]}
    assert all(run["peak_memory_bytes"] > 1e7 and run["cpu_s_per_sample"] > 0 for run in facts["runs"])
    rates = {row["loader"]: row["rate"] for row in facts["summaries"]}
    assert facts["ratio"] == pytest.approx(rates["penstock"] / rates["plain DataLoader"])


def test_bench_without_torch_prints_how_to_install_it(tmp_path):
    make_shards(tmp_path, REID, samples=2, scale=0.5)
    code = "import sys; sys.modules['torch'] = None; from penstock.cli.main import main; main()"
    command = [sys.executable, "-c", code, "bench", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, env=dict(os.environ))
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "pip install 'penstock[torch]'" in ran.stderr


def test_bench_refuses_a_field_that_no_sample_has(in_process, tmp_path):
    make_shards(tmp_path, REID, samples=4, scale=0.5)
    ran = in_process("bench", tmp_path, "--field", "image=.png:32")
    assert ran.code == 3
    assert ".png" in ran.err


def test_bench_with_a_malformed_field_exits_with_2(in_process, tmp_path):
    make_shards(tmp_path, REID, samples=4, scale=0.5)
    ran = in_process("bench", tmp_path, "--field", "image")
    assert ran.code == 2
    assert "NAME=SUFFIX" in ran.err


def test_bench_help_has_an_example_and_fits_into_80_columns(in_process):
    ran = in_process("bench", "--help")
    assert ran.code == 0
    assert "penstock bench sa1b/ --field image=.jpg:1024" in ran.out
    assert all(len(line) <= 80 for line in ran.out.splitlines())
