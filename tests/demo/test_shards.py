import pytest

from penstock.demo.shards import MARK, DemoSize, clear, index, pack_for_training
from penstock.errors import SettingError
from penstock.shards.scan import index_shard


def test_every_shard_holds_one_batch_however_many_samples_are_asked_for(lot):
    assert (DemoSize(samples=17, batch_size=8).shards, DemoSize(samples=16, batch_size=8).shards) == (3, 2)
    assert lot.samples == 24
    assert [len(index_shard(shard)) for shard in lot.shards] == [4] * 6


def test_pictures_and_features_shrink_together():
    assert (DemoSize(16, scale=1.0).image_size, DemoSize(16, scale=0.5).image_size) == (1024, 512)


def test_indexing_counts_the_parts_of_all_shards(lot):
    assert index(lot.shards) == 48


def test_packing_keeps_the_order_of_the_samples(lot, tmp_path):
    packed = pack_for_training(lot, tmp_path / "packed", 64)
    keys = [[key for shard in each.shards for key in index_shard(shard).keys] for each in (lot, packed)]
    assert keys[0] == keys[1]
    assert packed.samples == lot.samples
    assert packed.sample_bytes > 0


def test_an_earlier_demo_is_cleared_and_a_new_folder_is_made(tmp_path):
    folder = tmp_path / "new" / "demo"
    clear(folder)
    (folder / "old.tar").touch()
    clear(folder)
    assert [file.name for file in folder.iterdir()] == [MARK]


def test_an_empty_folder_is_taken(tmp_path):
    clear(tmp_path)
    assert (tmp_path / MARK).exists()


@pytest.mark.parametrize("inside", ["thesis.txt", ""])
def test_what_is_not_from_a_demo_is_never_cleared(tmp_path, inside):
    mine = tmp_path / "mine"
    if inside:
        mine.mkdir()
    (mine / inside).write_text("x")
    with pytest.raises(SettingError, match="not from a demo"):
        clear(mine)
    assert (mine / inside).read_text() == "x"
