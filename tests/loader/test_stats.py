"""The statistics and the progress that a loader reports."""

import re

import pytest

import penstock
from penstock.core.stats import GpuTimes
from penstock.data.batch.delivery import Delivery
from penstock.data.device.device_stage import DevicePlan, DeviceStage
from penstock.data.device.gpu_decode.decode_split import SplitController
from penstock.runtime import progress
from penstock.testing import IMAGENET, make_shards


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return make_shards(tmp_path_factory.mktemp("shards"), IMAGENET, samples=48, shards=2, scale=0.2)


@pytest.fixture
def make(shards):
    loaders = []

    def build(**settings):
        fields = {"image": penstock.Image(".jpg", size=32), "label": penstock.Label(".cls")}
        loaders.append(
            penstock.Loader(shards, fields, 8, engine=penstock.EngineOptions("thread"), num_workers=2, **settings)
        )
        return loaders[-1]

    yield build
    for loader in loaders:
        loader.close()


def test_the_counters_are_those_of_the_epoch(make):
    loader = make()
    for _ in loader:
        pass
    stats = loader.stats()
    assert (stats.samples, stats.batches, stats.bad, stats.epoch) == (48, 6, 0, 1)
    assert (stats.engine.samples, stats.engine.batches, stats.engine.workers) == (48, 6, 2)
    assert stats.engine.bytes_read > 0
    assert [hop.name for hop in stats.hops] == ["read", "decode", "deliver", "step"]
    assert stats.bottleneck in {"read", "decode", "deliver", "step"}


def test_the_position_is_that_after_the_delivered_batch(make):
    loader = make()
    for number, _ in enumerate(loader, 1):
        assert (loader.stats().position, loader.stats().epoch_samples) == (8 * number, 48)


def test_the_statistics_of_an_engine_are_kept_after_it_is_closed(make):
    loader = make()
    for _ in loader:
        break
    assert loader.stats().engine.samples > 0
    assert loader.stats().samples == 8


def test_the_statistics_before_the_first_epoch_are_zero(make):
    stats = make().stats()
    assert (stats.samples, stats.engine.samples, stats.samples_per_s) == (0, 0, 0.0)


def test_statistics_are_frozen(make):
    with pytest.raises(AttributeError):
        make().stats().samples = 3


def test_progress_lines_are_printed_at_intervals(make, capsys, monkeypatch):
    monkeypatch.setattr(progress, "LINE_S", 0.0)
    for _ in make(progress="lines"):
        pass
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 6
    assert re.match(r"epoch 0, 8 of 48 samples, \d+/s, training waited \d+%, bottleneck \w+ \| read", lines[0])


def test_nothing_is_printed_by_default(make, capsys):
    for _ in make():
        pass
    assert capsys.readouterr() == ("", "")


def test_progress_shows_a_bar_until_the_epoch_ends(make, capsys):
    for _ in make(progress=True):
        pass
    assert "epoch 0" in capsys.readouterr().err


def test_the_repr_has_the_position(make):
    loader = make()
    assert "epoch 0, 0 of 48 samples; idle" in repr(loader)
    for _ in loader:
        assert "epoch 0, 8 of 48 samples; 2 workers (thread)" in repr(loader)
        break


def test_gpu_times_are_kept_after_leaving_an_epoch(make, monkeypatch):
    monkeypatch.setattr(Delivery, "gpu_times", GpuTimes(3.0, 2.0, 1.0))
    loader = make()
    assert loader.gpu_times is None
    for _ in loader:
        break
    assert loader.gpu_times == GpuTimes(3.0, 2.0, 1.0)
    assert loader.stats().gpu_times == loader.gpu_times


def test_the_split_of_decoding_knows_when_all_workers_are_ready(make, monkeypatch):
    controller = SplitController()
    monkeypatch.setattr(DevicePlan, "make_stage", lambda *_: DeviceStage(split_controller=controller))
    loader = make()
    batches = iter(loader)
    next(batches)
    assert controller.workers_ready == loader._engine.is_settled
    assert controller.workers_ready()  # threads are ready at once
