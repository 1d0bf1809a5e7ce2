"""A loader's position as a dict."""

import json

import pytest

from penstock.data.order.checkpoint import Position, read_state, write_state
from penstock.errors import SettingError

IDENTITY = {"seed": 7, "shuffle": True, "samples": 100, "fingerprint": "abc"}


def test_a_position_survives_json():
    state = json.loads(json.dumps(write_state(Position(3, 40, in_progress=True), IDENTITY)))
    assert read_state(state, IDENTITY) == Position(3, 40, in_progress=False, order={})


def test_the_order_of_the_epoch_is_part_of_the_state():
    order = {"lanes": 66, "sampler_state": {"length": 5}}
    state = json.loads(json.dumps(write_state(Position(3, 40, order=order), IDENTITY)))
    assert read_state(state, IDENTITY).order == order


@pytest.mark.parametrize(("name", "value"), [("lanes", 0), ("lanes", "64"), ("sampler_state", 3)])
def test_an_order_that_cannot_be_is_refused(name, value):
    with pytest.raises(SettingError, match=f"^{name} .*in a state is not a"):
        read_state({**write_state(Position(), IDENTITY), name: value}, IDENTITY)


@pytest.mark.parametrize(
    ("name", "other", "message"),
    [
        ("seed", 8, "made with seed 7, this loader has 8"),
        ("shuffle", False, "made with shuffle True, this loader has False"),
        ("samples", 99, "made with samples 100, this loader has 99"),
        ("fingerprint", "abd", "the shards or their samples are not the same"),
    ],
)
def test_a_different_setting_is_named(name, other, message):
    with pytest.raises(SettingError, match=message) as caught:
        read_state(write_state(Position(), IDENTITY), {**IDENTITY, name: other})
    assert "Resume with the shards and settings" in caught.value.advice


@pytest.mark.parametrize("version", [None, 0, 2, "1"])
def test_a_state_of_another_version_is_refused(version):
    with pytest.raises(SettingError, match=f"version {version!r}"):
        read_state({**write_state(Position(), IDENTITY), "version": version}, IDENTITY)


@pytest.mark.parametrize(
    ("name", "value"),
    [("epoch", -1), ("epoch", None), ("epoch", 1.5), ("epoch", True), ("position", -1), ("position", "4")],
)
def test_a_value_that_is_not_a_count_is_refused(name, value):
    with pytest.raises(SettingError, match=f"{name} {value!r} in a state is not a whole number"):
        read_state({**write_state(Position(), IDENTITY), name: value}, IDENTITY)


def test_a_position_may_be_the_end_of_the_epoch_but_not_past_it():
    assert read_state(write_state(Position(0, 100), IDENTITY), IDENTITY).samples == 100
    with pytest.raises(SettingError, match="past the end"):
        read_state(write_state(Position(0, 101), IDENTITY), IDENTITY)
