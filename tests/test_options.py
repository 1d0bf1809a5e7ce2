"""Option groups are frozen and check their values when they are created."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import SettingError
from penstock.options import (
    CacheOptions,
    EngineOptions,
    ErrorOptions,
    LoaderOptions,
    ReadOptions,
    cache_options,
    error_options,
    in_process,
)


def test_defaults_are_accepted_and_leave_the_engine_free_to_decide():
    options = LoaderOptions(batch_size=1)
    assert (options.num_workers, options.reading.num_readers, options.engine.memory_bytes) == (None, None, None)
    assert (options.device, options.errors.on_error, options.cache) == ("cpu", "raise", None)


@pytest.mark.parametrize("batch_size", [0, -3])
def test_a_batch_without_samples_is_refused(batch_size):
    with pytest.raises(SettingError, match=f"batch_size={batch_size} is not above 0"):
        LoaderOptions(batch_size=batch_size)


COUNTS = [
    (ReadOptions, "num_readers"),
    (ReadOptions, "lanes"),
    (ReadOptions, "block_bytes"),
    (EngineOptions, "memory_bytes"),
]


@pytest.mark.parametrize(("kind", "name"), COUNTS)
@pytest.mark.parametrize("value", [0, -1])
def test_counts_below_one_are_refused_by_name(kind, name, value):
    with pytest.raises(SettingError, match=f"{name}={value} is not above 0"):
        kind(**{name: value})


@pytest.mark.parametrize("value", [2.5, 2.0, True, "8"])
def test_what_is_not_a_whole_number_is_refused_by_name(value):
    with pytest.raises(SettingError, match=f"batch_size={value!r} is not a whole number"):
        LoaderOptions(batch_size=value)
    for kind, name in COUNTS:
        with pytest.raises(SettingError, match=f"{name}={value!r} is not a whole number"):
            kind(**{name: value})


def test_a_whole_number_of_numpy_is_accepted():
    assert LoaderOptions(batch_size=np.int64(8)).batch_size == 8


@pytest.mark.parametrize("timeout_s", [0, -1.5, math.nan])
def test_a_timeout_that_is_not_above_zero_is_refused(timeout_s):
    with pytest.raises(SettingError, match="timeout_s"):
        EngineOptions(timeout_s=timeout_s)


def test_an_unknown_executor_is_refused_with_the_known_ones():
    with pytest.raises(SettingError, match="'gpu' is not known") as caught:
        EngineOptions(executor="gpu")
    assert caught.value.advice == "Use auto, process or thread"


def test_an_unknown_error_policy_is_refused_with_the_known_ones():
    with pytest.raises(SettingError, match="'ignore' is not known") as caught:
        ErrorOptions(on_error="ignore")
    assert caught.value.advice == "Use raise, skip or replace"


@pytest.mark.parametrize("fraction", [-0.1, 1.1, 5, math.nan])
def test_a_fraction_of_bad_samples_outside_zero_to_one_is_refused(fraction):
    with pytest.raises(SettingError, match="max_bad_fraction"):
        ErrorOptions(max_bad_fraction=fraction)


@pytest.mark.parametrize("fraction", [0, 0.5, 1])
def test_a_fraction_of_bad_samples_from_zero_to_one_is_accepted(fraction):
    assert ErrorOptions(max_bad_fraction=fraction).max_bad_fraction == fraction


@pytest.mark.parametrize(
    ("folder", "max_bytes"), [("", None), ("s3://bucket/x", None), ("s3:/bucket/x", None), ("/fast", 0), ("/fast", -5)]
)
def test_a_cache_that_is_not_a_folder_or_holds_nothing_is_refused(folder, max_bytes):
    with pytest.raises(SettingError):
        CacheOptions(folder, max_bytes)


def test_a_cache_may_be_given_as_its_folder_alone():
    assert cache_options("/fast") == cache_options(Path("/fast")) == CacheOptions("/fast")
    assert cache_options(CacheOptions("C:/fast", 5)) == CacheOptions("C:/fast", 5)
    assert cache_options(None) is None


def test_on_error_is_a_shorthand_for_its_group_and_refused_beside_it():
    assert error_options(None, None) == ErrorOptions()
    assert error_options("skip", None) == ErrorOptions("skip")
    with pytest.raises(SettingError, match="on_error is given beside errors"):
        error_options("skip", ErrorOptions("skip"))


def test_no_workers_are_one_thread_of_this_process():
    assert in_process(0, EngineOptions(timeout_s=5.0)) == (1, EngineOptions("thread", timeout_s=5.0))
    assert in_process(None, EngineOptions()) == (None, EngineOptions())
    with pytest.raises(SettingError, match="num_workers=-1 is below 0"):
        in_process(-1, EngineOptions())
    with pytest.raises(SettingError, match="num_workers=False is not a whole number"):
        in_process(False, EngineOptions())


def test_the_options_of_reading_that_were_changed_are_known_by_name():
    assert ReadOptions().changed() == []
    assert ReadOptions(num_readers=3, block_bytes=4096).changed() == ["num_readers", "block_bytes"]


@pytest.mark.parametrize("options", [LoaderOptions(batch_size=4), EngineOptions(), ErrorOptions(), ReadOptions()])
def test_options_are_frozen(options):
    name = dataclasses.fields(options)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(options, name, 1)
