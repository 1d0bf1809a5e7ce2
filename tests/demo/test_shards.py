import pytest

from penstock.demo.shards import MARKER, DemoSize, clear_folder, index_parts, pack_for_training
from penstock.errors import SettingError
from penstock.shards.scan import index_shard


def test_every_shard_has_one_batch_for_any_number_of_samples(demo_shards):
    assert (DemoSize(samples=17, batch_size=8).shards, DemoSize(samples=16, batch_size=8).shards) == (3, 2)
    assert demo_shards.samples == 24
    assert [len(index_shard(shard)) for shard in demo_shards.paths] == [4] * 6


def test_images_and_features_shrink_together():
    assert (DemoSize(16, scale=1.0).image_size, DemoSize(16, scale=0.5).image_size) == (1024, 512)


def test_indexing_counts_the_parts_of_all_shards(demo_shards):
    assert index_parts(demo_shards.paths) == 48


def test_packing_keeps_the_order_of_the_samples(demo_shards, tmp_path):
    packed = pack_for_training(demo_shards, tmp_path / "packed", 64)
    keys = [[key for shard in each.paths for key in index_shard(shard).keys] for each in (demo_shards, packed)]
    assert keys[0] == keys[1]
    assert packed.samples == demo_shards.samples
    assert packed.sample_bytes > 0


def test_an_earlier_demo_is_removed_and_a_new_folder_is_made(tmp_path):
    folder = tmp_path / "new" / "demo"
    clear_folder(folder)
    (folder / "old.tar").touch()
    clear_folder(folder)
    assert [file.name for file in folder.iterdir()] == [MARKER]


def test_an_empty_folder_is_used(tmp_path):
    clear_folder(tmp_path)
    assert (tmp_path / MARKER).exists()


@pytest.mark.parametrize("inside", ["thesis.txt", ""])
def test_a_folder_that_is_not_from_a_demo_is_never_removed(tmp_path, inside):
    other = tmp_path / "other"
    if inside:
        other.mkdir()
    (other / inside).write_text("x")
    with pytest.raises(SettingError, match="not from a demo"):
        clear_folder(other)
    assert (other / inside).read_text() == "x"
