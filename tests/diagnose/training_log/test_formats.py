"""Each log format: the values of its lines, and the lines of other formats or of validation, which are refused."""

import pytest

from penstock.diagnose.training_log.formats import (
    UserPattern,
    parse_huggingface,
    parse_lightning,
    parse_mmengine,
    parse_slow_batch_report,
    parse_timestamp,
    parse_timm,
    parse_tqdm,
)
from penstock.diagnose.training_log.parsed_log import ProgressBar, RunSummary, SlowBatch, StepMeter, WaitStatistics
from penstock.errors import SettingError

POSTFIX_BAR = (
    "Epoch 2:  65%|██████▍   | 2950/4570 [34:15<27:54,  1.03s/it, total=0.4355, feat=0.0361, tb(ms)=161, "
    "avg(ms)=696, data=576, bkbn=25, dist=2, edge_t=14, bwd=119, opt=1]"
)


def test_a_slow_batch_line_gives_number_wait_and_label():
    parsed = parse_slow_batch_report("[SLOW BATCH #2950] 20.69s - prefetch_buffer_exhausted (after 31 fast batches)")
    assert parsed == SlowBatch(number=2950, seconds=20.69, label="prefetch_buffer_exhausted")


def test_wait_statistics_are_converted_to_seconds():
    line = "[DATA LOAD] Recent 50 batches: avg=449.1ms, min=0.4ms, max=22409.4ms, std=3137.2ms"
    parsed = parse_slow_batch_report(line)
    assert isinstance(parsed, WaitStatistics)
    assert (parsed.batches, parsed.mean_s, parsed.max_s) == (50, pytest.approx(0.4491), pytest.approx(22.4094))
    assert parse_slow_batch_report("[DATA LOAD] Found 1 slow batches in recent 50 batches") is None


def test_the_live_lines_of_the_watcher_are_parsed_too():
    parsed = parse_slow_batch_report(
        "[SLOW BATCH #2950] 20.69s waiting on worker 6 · ready 372/384 · lagging worker (0.94)"
    )
    assert parsed == SlowBatch(number=2950, seconds=20.69)


def test_a_tqdm_postfix_gives_the_wait_and_the_phases_after_it():
    parsed = parse_tqdm(POSTFIX_BAR)
    assert (parsed.done, parsed.total, parsed.elapsed_s, parsed.wait_s) == (2950, 4570, 2055, pytest.approx(0.576))
    assert [name for name, _ in parsed.phases] == ["bkbn", "dist", "edge_t", "bwd", "opt"]
    assert parsed.step_without_wait_s == pytest.approx(0.161)


def test_a_tqdm_postfix_without_phases_gives_the_step_time():
    assert parse_tqdm("65%|█| 2949/4570 [34:14<04:19,  6.25it/s, tb(ms)=160]").step_without_wait_s == pytest.approx(
        0.160
    )


def test_metrics_and_counters_of_a_tqdm_postfix_are_not_phases():
    parsed = parse_tqdm("9%|x| 9/99 [00:09<01:10, 1.0it/s, data=0.4, fwd=12.5, loss=-0.76, acc=97.3, epoch=3, bwd=30]")
    assert parsed.phases == (("fwd", pytest.approx(0.0125)), ("bwd", pytest.approx(0.03)))


def test_a_tqdm_bar_without_a_postfix_gives_steps_and_elapsed_time():
    assert parse_tqdm(" 25%|██▌       | 2/8 [1:00:05<00:00, 237.81it/s]") == ProgressBar(
        done=2, total=8, elapsed_s=3605
    )


@pytest.mark.parametrize(
    "line",
    [
        "Validation: 50%|█| 5/10 [00:01<00:01, 5.0it/s]",
        "Sanity Checking DataLoader 0: 100%|█| 2/2 [00:00<00:00, 11.1it/s]",
        "  0%|          | 0/8 [00:00<?, ",
        "we reach 5 it/s",
    ],
)
def test_bars_of_validation_and_incomplete_bars_are_not_parsed(line):
    assert parse_tqdm(line) is None


def test_both_kinds_of_lightning_bar_are_parsed():
    assert parse_lightning("Epoch 1:   4%|▎ | 40/1095 [00:03<01:37, 10.84it/s, v_num=10]").done == 40
    rich = "Epoch 0/9  ━━━━━━━ 500/1095 0:01:43 • 0:02:02 4.87it/s v_num: 10.000"
    assert parse_lightning(rich) == ProgressBar(done=500, total=1095, elapsed_s=103)
    assert parse_lightning("40/1095 [00:03<01:37, 10.84it/s]") is None


def test_a_timm_line_gives_last_value_running_mean_and_samples_per_step():
    parsed = parse_timm(
        "Train: 3 [  50/1251 (  4%)]  Loss: 6.95 (6.95)  Time: 0.345s,  742.03/s  (0.402s,  636.82/s)  "
        "LR: 1.000e-05  Data: 0.011 (0.050)"
    )
    assert parsed == StepMeter(
        step=50, epoch=3, total=1251, time_s=0.345, wait_s=0.011, running_time_s=0.402, running_wait_s=0.05, samples=256
    )


def test_the_meters_of_the_imagenet_example_are_parsed_as_timm():
    parsed = parse_timm("Epoch: [0][  10/5005]\tTime  0.345 ( 0.402)\tData  0.011 ( 0.050)\tLoss 6.9e+00 (7.0e+00)")
    assert (parsed.step, parsed.running_time_s, parsed.running_wait_s, parsed.samples) == (10, 0.402, 0.05, None)
    assert parse_timm("Test: [   0/97]  Time: 0.412 (0.512)  Loss:   6.8 ( 6.8)") is None


@pytest.mark.parametrize(
    ("line", "epoch", "step"),
    [
        ("INFO - Epoch(train) [1][ 50/500]  lr: 1e-2  eta: 0:00:25  time: 0.31  data_time: 0.1  loss: 1.0", 1, 50),
        (
            "mmdet - INFO - Epoch [1][1500/14659]\tlr: 0.01, eta: 1 day, time: 0.310, data_time: 0.100, memory: 3",
            1,
            1500,
        ),
        ("INFO - Iter(train) [  100/80000]  base_lr: 1e-2  time: 0.31  data_time: 0.1", None, 100),
    ],
)
def test_mmengine_and_mmcv_lines_by_epoch_or_iteration_are_parsed(line, epoch, step):
    parsed = parse_mmengine(line)
    assert (parsed.epoch, parsed.step, parsed.time_s, parsed.wait_s) == (epoch, step, 0.31, 0.1)


def test_validation_lines_of_mmengine_are_not_parsed():
    assert parse_mmengine("INFO - Epoch(val) [1][50/50]    mAP: 0.2  data_time: 0.9000  time: 1.0000") is None


def test_hf_trainer_values_may_be_numbers_strings_or_table_rows():
    assert parse_huggingface("{'loss': '1.617', 'learning_rate': '4.3e-05', 'epoch': '0.25'}") == RunSummary(epoch=0.25)
    parsed = parse_huggingface("{'train_runtime': 100.5, 'train_samples_per_second': 63.68, 'epoch': 1.0}")
    assert parsed == RunSummary(epoch=1, seconds=100.5, samples_per_s=63.68)
    assert parse_huggingface("  train_runtime            = 0:01:40.50") == RunSummary(seconds=100.5)
    assert parse_huggingface("epoch {1} of 5") is None


@pytest.mark.parametrize("line", ["[SLOW BATCH #1] -2.5s - x", "[SLOW BATCH #1] nans"])
def test_impossible_times_raise(line):
    with pytest.raises(ValueError, match="not a duration"):
        parse_slow_batch_report(line)


def test_timestamps_are_parsed_with_and_without_a_year():
    assert parse_timestamp("2025-11-15 19:26:50,852 W") - parse_timestamp("2025-11-15 19:26:27,537 W") == pytest.approx(
        23.315
    )
    assert parse_timestamp("04/22 00:00:01 - mmengine") - parse_timestamp("04/21 23:59:58 - mmengine") == 3
    assert parse_timestamp("2026-13-45 19:26:50") is None
    assert parse_timestamp("[13/12/22 11:13:56] day first: not read as month first") is None


def test_a_user_pattern_takes_times_in_seconds_or_milliseconds():
    parsed = UserPattern(r"it (?P<step>\d+) took (?P<time>\S+) s, loader (?P<data_ms>\S+) ms").parse(
        "it 7 took 0.5 s, loader 120 ms"
    )
    assert parsed == StepMeter(step=7, time_s=0.5, wait_s=pytest.approx(0.12))


@pytest.mark.parametrize("expression", ["(", r"(?P<step>\d+)", r"(?P<time>\d+) (?P<colour>\w+)"])
def test_an_unusable_user_pattern_is_refused_with_a_reason(expression):
    with pytest.raises(SettingError, match="the pattern"):
        UserPattern(expression)
