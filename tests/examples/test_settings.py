"""Settings and data of the examples."""

import importlib
import json

import pytest
from examples.common.data import loose_files, make_shards_once
from examples.common.settings import TimeLimitedLoader, read_settings
from examples.reid.data import crops

from penstock.errors import SettingError
from penstock.testing import REID, FakeClock

EXAMPLES = ("distill", "reid", "segment")


@pytest.fixture
def reid():
    return importlib.import_module("examples.reid.train")


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("toy", [False, True])
def test_configs_have_all_keys_that_their_script_needs(name, toy):
    example = importlib.import_module(f"examples.{name}.train")
    settings = read_settings(example.Config, example.CONFIG, toy=toy)
    assert (settings.samples < 500) == toy


def test_an_unknown_key_is_refused_by_name(reid, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(reid.CONFIG.read_text() + "wdith: 3\n")
    with pytest.raises(SettingError, match=r"config\.yaml.*wdith"):
        read_settings(reid.Config, config, toy=False)


def test_a_value_of_another_type_is_refused_with_its_key(reid):
    with pytest.raises(SettingError, match=r"before\.workers"):
        read_settings(reid.Config, reid.CONFIG, toy=False, changed={"before": {"workers": "two", "prefetch": 1}})


def test_data_that_was_not_finished_is_made_again(reid, tmp_path):
    settings = read_settings(reid.Config, reid.CONFIG, toy=True, changed={"samples": 8})
    (tmp_path / "shards.unfinished").mkdir()
    (tmp_path / "shards.unfinished" / "reid-000000.tar").write_bytes(b"half")
    shards = make_shards_once(tmp_path, REID, settings)
    assert len(loose_files(shards)) == 16
    assert not (tmp_path / "shards.unfinished").exists()


def test_data_is_made_once(reid, tmp_path):
    settings = read_settings(reid.Config, reid.CONFIG, toy=True, changed={"samples": 8})
    shards = make_shards_once(tmp_path, REID, settings)
    (shards / "reid-000001.tar").unlink()
    assert make_shards_once(tmp_path, REID, settings) == shards
    assert len(list(shards.iterdir())) == 1


def test_images_repeat_while_each_sample_has_its_own_identity(reid, tmp_path):
    settings = read_settings(reid.Config, reid.CONFIG, toy=True, changed={"samples": 12, "distinct": 4})
    files = {path.name: path.read_bytes() for path in loose_files(make_shards_once(tmp_path, crops(6), settings))}
    images = [data for name, data in files.items() if name.endswith(".jpg")]
    people = [json.loads(data)["identity"] for name, data in files.items() if name.endswith(".json")]
    assert (len(images), len(set(images))) == (12, 4)
    assert sorted(people) == sorted([*range(6), *range(6)])


def test_a_time_limited_loader_ends_after_its_time_and_stays_ended():
    clock = FakeClock()
    loader = TimeLimitedLoader(range(100), 10.0, clock)
    batches = []
    for _ in range(2):
        for batch in loader:
            batches.append(batch)
            clock.advance(3.0)
    assert batches == [0, 1, 2, 3]
