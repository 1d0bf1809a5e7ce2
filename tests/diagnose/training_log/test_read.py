"""Reading a log file: lines of text, settings, and the parsed log."""

import codecs
import io

import pytest
from tests.support.paths import DATA_FILES

from penstock.diagnose.training_log import read
from penstock.diagnose.training_log.read import LINE_CHARS_MAX, LogLines, SettingsScanner, read_log
from penstock.errors import RecordingError, SettingError


@pytest.fixture
def write(tmp_path):
    def write_log(text):
        path = tmp_path / "train.log"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write_log


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
def test_recognised_lines_are_counted_by_format(name, recognised):
    assert read_log(DATA_FILES / name).recognised == recognised


def test_settings_and_steps_per_epoch_are_found_in_the_log():
    log = read_log(DATA_FILES / "slow_batches.log")
    assert (log.workers, log.prefetch_factors, log.batch_sizes) == ((32,), (12,), (24,))
    assert log.steps_per_epoch == 4570


@pytest.mark.parametrize("text", [b"", b"\n\n", bytes(range(256)) * 500, b"epoch 1: fine\n"])
def test_a_log_without_a_recognised_line_is_refused_with_advice(write, text):
    with pytest.raises(RecordingError, match="--pattern"):
        read_log(write(text))


def test_a_missing_log_is_refused_with_its_name(tmp_path):
    with pytest.raises(RecordingError, match="absent"):
        read_log(tmp_path / "absent.log")


def test_a_truncated_log_is_parsed_up_to_its_end(write):
    whole = (DATA_FILES / "slow_batches.log").read_bytes()
    log = read_log(write(whole[: whole.index(b"#3046") + 3]))
    assert [batch.number for batch in log.slow] == [2950, 2982, 3014]


def test_a_log_in_utf_16_is_parsed_like_one_in_utf_8(write):
    text = (DATA_FILES / "slow_batches.log").read_text(encoding="utf-8")
    assert read_log(write(text.encode("utf-16"))) == read_log(DATA_FILES / "slow_batches.log")


def test_impossible_times_are_left_out_and_counted(write):
    log = read_log(write("[SLOW BATCH #1] -2s\n[SLOW BATCH #2] nans\n[SLOW BATCH #3] 2s\n"))
    assert [batch.number for batch in log.slow] == [3]
    assert log.notes == ("2 lines give impossible times (negative, NaN or absurdly long) and were left out",)


def test_of_too_many_lines_the_last_are_kept_and_a_note_reports_the_rest(write, monkeypatch):
    monkeypatch.setattr(read, "LINES_KEPT_MAX", 10)
    log = read_log(write("".join(f"[SLOW BATCH #{number}] 2s\n" for number in range(25))))
    assert [batch.number for batch in log.slow] == list(range(15, 25))
    assert log.notes == ("15 lines were left out: only the last 10 of each kind are kept",)


def test_a_user_pattern_adds_a_format(write):
    path = write("step 1: 300 ms (loader 30 ms)\nstep 2: 310 ms (loader 35 ms)\nnoise\n")
    log = read_log(path, r"step (?P<step>\d+): (?P<time_ms>\d+) ms \(loader (?P<data_ms>\d+) ms\)")
    assert [(meter.step, meter.wait_s) for meter in log.meters] == [(1, pytest.approx(0.03)), (2, pytest.approx(0.035))]
    assert log.recognised == {"--pattern": 2}


def test_an_invalid_pattern_is_refused_before_the_file_is_read(tmp_path):
    with pytest.raises(SettingError):
        read_log(tmp_path / "absent.log", "(")


# -- settings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "- num_workers: 32",
        "python train.py --num-workers 32",
        "Namespace(lr=0.1, num_workers=32, x=1)",
        "{'dataloader_num_workers': 32}",
        "args: workers=32",
        "train.py /data --workers 32 -b 256",
    ],
)
def test_num_workers_is_found_in_options_and_configurations(line):
    settings = SettingsScanner()
    settings.scan(line)
    assert settings.workers == [32]


def test_settings_with_similar_names_are_not_confused():
    settings = SettingsScanner()
    settings.scan("val_batch_size=7 batch_size=24 prefetch_factor: 12 batch_size: 1.5 slow batch 9")
    assert (settings.batch_sizes, settings.prefetch_factors, settings.workers) == ([24], [12], [])


# -- lines ---------------------------------------------------------------------------------------------------------


def lines_of(data):
    return list(LogLines(io.BytesIO(data)))


def test_carriage_returns_of_a_progress_bar_end_lines():
    assert lines_of(b"\r 1/8\r\r 2/8\r\n done\n") == [" 1/8", " 2/8", " done"]


def test_terminal_escape_sequences_are_removed():
    assert lines_of(b"\x1b[1;31m[SLOW BATCH #1]\x1b[0m 2s\x1b]0;title\x07!\n") == ["[SLOW BATCH #1] 2s!"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_byte_order_mark_sets_the_encoding(encoding):
    assert lines_of("训练\r\nzwei".encode(encoding)) == ["训练", "zwei"]


def test_utf_16_big_endian_is_decoded():
    assert lines_of(codecs.BOM_UTF16_BE + "a\nb".encode("utf-16-be")) == ["a", "b"]


def test_undecodable_bytes_are_replaced():
    assert lines_of(b"ok \xc3\x28\n") == ["ok �("]


def test_a_very_long_line_is_truncated_and_the_next_is_whole():
    lines = LogLines(io.BytesIO(b"x" * (3 << 20) + b"\nnext\n"))
    assert [len(line) for line in lines] == [LINE_CHARS_MAX, 4]
    assert lines.truncated == 1


def test_a_character_split_between_two_chunks_is_decoded():
    filler = b"a\n" * ((1 << 19) - 1) + b"b"
    assert len(filler) == (1 << 20) - 1
    assert lines_of(filler + "é\n".encode())[-1] == "bé"


def test_an_empty_file_has_no_lines():
    assert lines_of(b"") == []
