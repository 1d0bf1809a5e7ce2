from penstock.testing import REID, make_shards


def test_index_builds_sidecars_once(penstock, tmp_path):
    shards = make_shards(tmp_path, REID, samples=6, shards=2, scale=0.5)
    first = penstock("shards", "index", "--json", tmp_path).json
    second = penstock("shards", "index", "--json", tmp_path).json
    assert (first["built"], first["samples"], first["parts"]) == (2, 6, 12)
    assert second["built"] == 0
    assert all((tmp_path / f"{shard.name}.pidx").exists() for shard in shards)


def test_index_rebuild_builds_again(in_process, tmp_path):
    make_shards(tmp_path, REID, samples=2, shards=1, scale=0.5)
    in_process("shards", "index", tmp_path)
    assert in_process("shards", "index", "--rebuild", "--json", tmp_path).json["built"] == 1


def test_a_stale_index_is_rebuilt_with_a_notice(penstock, tmp_path):
    (shard,) = make_shards(tmp_path, REID, samples=2, shards=1, scale=0.5)
    penstock("shards", "index", tmp_path)
    make_shards(tmp_path, REID, samples=3, shards=1, scale=0.5)
    ran = penstock("shards", "index", "--json", shard)
    assert ran.json["samples"] == 3
    assert "has changed since it was indexed" in " ".join(ran.err.split())


def test_index_of_a_broken_shard_exits_1_and_indexes_the_rest(in_process, tmp_path):
    make_shards(tmp_path, REID, samples=2, shards=1, scale=0.5)
    (tmp_path / "zz.tar").write_bytes(b"")
    ran = in_process("shards", "index", tmp_path)
    assert ran.code == 1
    assert "is empty (0 bytes)" in ran.out
    assert "1 shards indexed, 0 were indexed already, 1 failed" in ran.out
