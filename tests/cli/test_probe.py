import json

import pytest
import typer
from typer.testing import CliRunner

from penstock.cli.probe import probe
from penstock.errors import SettingError
from penstock.probe.results import DecodePoint, DecodeRates, Probes, SkippedProbe
from penstock.testing import REID, SA1B, make_shards

app = typer.Typer(rich_markup_mode=None)
app.command()(probe)

RATES = DecodeRates(
    points=(DecodePoint(1, 500.0, 0.002), DecodePoint(2, 990.0, 0.002)),
    sample_bytes=112_000.0,
    decoded_bytes=150_528,
    samples=16,
    bad=0,
    source="a.tar",
    seconds=6.0,
)


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "80"})


@pytest.fixture
def calls(monkeypatch):
    """Replace the probes by a given answer and record their arguments."""
    calls = {"answer": Probes(decode=RATES, copy=SkippedProbe("torch sees no CUDA device"))}

    def run_probes(subject, names, *, seconds):
        calls.update(subject=subject, names=names, seconds=seconds)
        return calls["answer"]

    monkeypatch.setattr("penstock.cli.probe.run_probes", run_probes)
    return calls


def test_rows_show_results_and_reasons_of_skipped_probes(calls):
    result = run()
    assert result.exit_code == 0
    assert calls["names"] == ("storage", "decode", "ipc", "copy")
    assert "synthetic" in calls["subject"].decode_input.source
    text = " ".join(result.stdout.split())
    assert "990 samples/s" in text
    assert "torch sees no CUDA device" in text
    assert max(len(line) for line in result.stdout.splitlines()) <= 80


def test_json_is_alone_on_stdout(calls):
    document = json.loads(run("--json").stdout)
    assert document["decode"]["points"][1] == {"workers": 2, "samples_per_s": 990.0, "cpu_s_per_sample": 0.002}
    assert document["copy"] == {"reason": "torch sees no CUDA device"}
    assert document["storage"] is None


def test_samples_of_the_first_shard_are_decoded(calls, tmp_path):
    make_shards(tmp_path, SA1B, samples=2, scale=0.05)
    result = run("all", tmp_path, "--batch-size", 3, "--duration", 5, "--refresh", "--image-size", 32)
    subject = calls["subject"]
    assert result.exit_code == 0
    assert list(subject.decode_input.fields) == ["image", "features", "edge"]
    assert subject.decode_input.slots["image"].shape == (3, 32, 32)
    assert (subject.path, subject.batch_size, subject.refresh, calls["seconds"]) == (str(tmp_path), 3, True, 5.0)
    assert "fields guessed: --field image=.jpg:32" in result.stderr


def test_fields_can_be_given(calls, tmp_path):
    make_shards(tmp_path, SA1B, samples=1, scale=0.05)
    run("decode", tmp_path, "--field", "edge=_features.npz:edge")
    assert list(calls["subject"].decode_input.fields) == ["edge"]
    assert calls["names"] == ("decode",)


def test_without_shards_synthetic_images_are_decoded_with_a_notice(calls, tmp_path):
    (tmp_path / "a.txt").write_text("hello")
    result = run("all", tmp_path)
    assert "synthetic" in calls["subject"].decode_input.source
    assert "synthetic images are decoded instead" in result.stderr


def test_a_broken_shard_skips_the_probes_that_need_it(calls, tmp_path):
    (tmp_path / "bad.tar").write_bytes(b"not a tar" * 200)
    run("all", tmp_path)
    assert isinstance(calls["subject"].decode_input, SkippedProbe)


def test_without_any_result_the_exit_code_is_3(calls):
    calls["answer"] = Probes(copy=SkippedProbe("torch sees no CUDA device"))
    assert run("copy").exit_code == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("storage",), "there is no storage to measure"),
        (("decode", "--field", "image=.jpg"), "Give their PATH"),
    ],
)
def test_options_that_need_a_path_are_refused_without_it(calls, arguments, words):
    result = run(*arguments)
    assert isinstance(result.exception, SettingError)
    assert words in str(result.exception)


@pytest.mark.parametrize("arguments", [("everything",), ("all", "--duration", "1000")])
def test_wrong_usage_exits_with_2(calls, arguments):
    assert run(*arguments).exit_code == 2


def test_a_missing_path_is_refused(calls):
    assert "no such file or folder: 'nowhere/'" in str(run("all", "nowhere/").exception)


def test_a_real_decode_probe_runs(tmp_path):
    make_shards(tmp_path, REID, samples=4, scale=0.5)
    result = run("decode", tmp_path, "--duration", 1, "--image-size", 16, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["decode"]
    assert found["points"][0]["workers"] == 1
    assert found["points"][0]["samples_per_s"] > 10
    assert found["samples"] == 4


def test_the_help_has_an_example():
    text = run("--help").stdout
    assert "penstock probe all sa1b/ --field image=.jpg:1024 --batch-size 24" in text
    assert "Exit code" in text
    assert all(len(line) <= 80 for line in text.splitlines())
