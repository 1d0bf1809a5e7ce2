"""From a file to what it says."""

import pytest
from tests.support.paths import DATA_FILES

from penstock.diagnose.training_log import read
from penstock.diagnose.training_log.read import read_log
from penstock.errors import RecordingError, SettingError

DATA = DATA_FILES


@pytest.fixture
def write(tmp_path):
    def put(text):
        path = tmp_path / "train.log"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return put


@pytest.mark.parametrize(
    ("name", "recognised"),
    [
        ("slow_batches.log", {"slow batches": 17, "tqdm": 2}),
        ("timm_healthy.log", {"timm": 42}),
        ("mmengine_waiting.log", {"MMEngine": 20}),
        ("lightning.log", {"Lightning": 5}),
        ("hf_trainer.log", {"HF Trainer": 4}),
    ],
)
def test_lines_are_counted_by_format(name, recognised):
    assert read_log(DATA / name).recognised == recognised


def test_settings_and_steps_per_epoch_are_found():
    log = read_log(DATA / "slow_batches.log")
    assert (log.workers, log.prefetch_factors, log.batch_sizes) == ((32,), (12,), (24,))
    assert log.steps_per_epoch == 4570


@pytest.mark.parametrize("text", [b"", b"\n\n", bytes(range(256)) * 500, b"epoch 1: fine\n"])
def test_a_log_with_nothing_in_it_is_refused_with_advice(write, text):
    with pytest.raises(RecordingError, match="--pattern"):
        read_log(write(text))


def test_a_log_that_is_not_there_is_refused_by_name(tmp_path):
    with pytest.raises(RecordingError, match="absent"):
        read_log(tmp_path / "absent.log")


def test_a_truncated_log_says_what_it_says_up_to_there(write):
    whole = (DATA / "slow_batches.log").read_bytes()
    log = read_log(write(whole[: whole.index(b"#3046") + 3]))
    assert [batch.number for batch in log.slow] == [2950, 2982, 3014]


def test_the_same_log_in_utf_16_says_the_same(write):
    text = (DATA / "slow_batches.log").read_text(encoding="utf-8")
    assert read_log(write(text.encode("utf-16"))) == read_log(DATA / "slow_batches.log")


def test_impossible_times_are_left_out_and_counted(write):
    log = read_log(write("[SLOW BATCH #1] -2s\n[SLOW BATCH #2] nans\n[SLOW BATCH #3] 2s\n"))
    assert [batch.number for batch in log.slow] == [3]
    assert log.notes == ("2 lines give impossible times (negative, NaN or absurdly long) and were left out",)


def test_of_too_many_lines_the_last_are_kept_and_it_is_said(write, monkeypatch):
    monkeypatch.setattr(read, "LINES_KEPT_MAX", 10)
    log = read_log(write("".join(f"[SLOW BATCH #{number}] 2s\n" for number in range(25))))
    assert [batch.number for batch in log.slow] == list(range(15, 25))
    assert log.notes == ("15 lines were left out: only the last 10 of each kind are kept",)


def test_a_pattern_adds_a_format(write):
    path = write("step 1: 300 ms (loader 30 ms)\nstep 2: 310 ms (loader 35 ms)\nnoise\n")
    log = read_log(path, r"step (?P<step>\d+): (?P<time_ms>\d+) ms \(loader (?P<data_ms>\d+) ms\)")
    assert [(meter.step, meter.wait_s) for meter in log.meters] == [(1, pytest.approx(0.03)), (2, pytest.approx(0.035))]
    assert log.recognised == {"--pattern": 2}


def test_a_bad_pattern_is_refused_before_the_file_is_read(tmp_path):
    with pytest.raises(SettingError):
        read_log(tmp_path / "absent.log", "(")
