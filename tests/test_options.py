"""Settings are checked at birth."""

import dataclasses
import math

import numpy as np
import pytest

from penstock.errors import SettingError
from penstock.options import BatchSettings, EngineSettings, ErrorSettings


def test_defaults_are_accepted_and_leave_the_engine_free_to_decide():
    engine = EngineSettings()
    assert (engine.workers, engine.readers, engine.memory_bytes) == (None, None, None)
    assert (BatchSettings(1).device, ErrorSettings().on_error) == ("cpu", "raise")


@pytest.mark.parametrize("batch_size", [0, -3])
def test_a_batch_without_samples_is_refused(batch_size):
    with pytest.raises(SettingError, match=f"batch_size={batch_size} is not above 0"):
        BatchSettings(batch_size)


@pytest.mark.parametrize("name", ["workers", "readers", "memory_bytes"])
@pytest.mark.parametrize("value", [0, -1])
def test_nothing_to_work_with_is_refused_by_name(name, value):
    with pytest.raises(SettingError, match=f"{name}={value} is not above 0"):
        EngineSettings(**{name: value})


@pytest.mark.parametrize("value", [2.5, 2.0, True, "8"])
def test_what_is_no_whole_number_is_refused_by_name(value):
    with pytest.raises(SettingError, match=f"batch_size={value!r} is not a whole number"):
        BatchSettings(value)
    for name in ("workers", "readers", "memory_bytes"):
        with pytest.raises(SettingError, match=f"{name}={value!r} is not a whole number"):
            EngineSettings(**{name: value})


def test_a_whole_number_of_numpy_is_one():
    assert BatchSettings(np.int64(8)).batch_size == 8


@pytest.mark.parametrize("timeout_s", [0, -1.5, math.nan])
def test_a_timeout_that_is_not_above_zero_is_refused(timeout_s):
    with pytest.raises(SettingError, match="timeout_s"):
        EngineSettings(timeout_s=timeout_s)


def test_an_unknown_executor_is_refused_with_the_known_ones():
    with pytest.raises(SettingError, match="'gpu' is not known") as caught:
        EngineSettings(executor="gpu")
    assert caught.value.advice == "Use auto, process or thread"


def test_an_unknown_error_policy_is_refused_with_the_known_ones():
    with pytest.raises(SettingError, match="'ignore' is not known") as caught:
        ErrorSettings(on_error="ignore")
    assert caught.value.advice == "Use raise, skip or replace"


@pytest.mark.parametrize("max_bad", [-0.1, 1.1, 5, math.nan])
def test_a_rate_that_is_no_share_is_refused(max_bad):
    with pytest.raises(SettingError, match="is not a share between 0 and 1"):
        ErrorSettings(max_bad=max_bad)


@pytest.mark.parametrize("max_bad", [0, 0.5, 1])
def test_any_share_is_accepted(max_bad):
    assert ErrorSettings(max_bad=max_bad).max_bad == max_bad


@pytest.mark.parametrize("settings", [BatchSettings(4), EngineSettings(), ErrorSettings()])
def test_settings_cannot_be_changed_later(settings):
    name = dataclasses.fields(settings)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(settings, name, None)
