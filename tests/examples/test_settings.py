"""Configs of the examples."""

import importlib

import pytest
from examples.common.material import loose_files, shards_in
from examples.common.settings import read_settings

from penstock.errors import SettingError
from penstock.testing import REID

EXAMPLES = ("distill", "reid", "segment")


@pytest.fixture
def reid():
    return importlib.import_module("examples.reid.train")


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("toy", [False, True])
def test_configs_hold_what_their_script_asks_for(name, toy):
    example = importlib.import_module(f"examples.{name}.train")
    settings = read_settings(example.Config, example.CONFIG, toy=toy)
    assert (settings.samples < 500) == toy


def test_a_key_that_is_not_known_is_refused_by_name(reid, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(reid.CONFIG.read_text() + "wdith: 3\n")
    with pytest.raises(SettingError, match=r"config\.yaml.*wdith"):
        read_settings(reid.Config, config, toy=False)


def test_a_value_of_another_type_is_refused_with_its_place(reid):
    with pytest.raises(SettingError, match=r"before\.workers"):
        read_settings(reid.Config, reid.CONFIG, toy=False, changed={"before": {"workers": "two", "prefetch": 1}})


def test_data_that_was_left_unfinished_is_made_again(reid, tmp_path):
    settings = read_settings(reid.Config, reid.CONFIG, toy=True, changed={"samples": 8})
    (tmp_path / "shards.unfinished").mkdir()
    (tmp_path / "shards.unfinished" / "reid-000000.tar").write_bytes(b"half")
    shards = shards_in(tmp_path, REID, settings)
    assert len(loose_files(shards)) == 16
    assert not (tmp_path / "shards.unfinished").exists()


def test_data_is_made_once(reid, tmp_path):
    settings = read_settings(reid.Config, reid.CONFIG, toy=True, changed={"samples": 8})
    shards = shards_in(tmp_path, REID, settings)
    (shards / "reid-000001.tar").unlink()
    assert shards_in(tmp_path, REID, settings) == shards
    assert len(list(shards.iterdir())) == 1
