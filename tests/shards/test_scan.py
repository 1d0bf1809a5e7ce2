"""The stored index is used while it describes the shard; otherwise the shard is scanned again."""

import errno
import logging
import os
import pickle
import threading
from dataclasses import replace

import pytest

from penstock.core.write_file import replace_file
from penstock.errors import ShardError, StorageError, TarError
from penstock.shards import scan
from penstock.shards.index import index_path_beside, index_path_in_cache, load_index, save_index
from penstock.shards.scan import index_shard, index_shards
from penstock.storage import local
from penstock.testing import SA1B, corrupt, make_shards, tar_bytes

OLD_TAR = tar_bytes([("0.jpg", b"old")])
TAR_OF_SAME_SIZE = tar_bytes([("1.jpg", b"new")])
LONGER_TAR = tar_bytes([("2.jpg", bytes(20_000))])


@pytest.fixture
def shard(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(OLD_TAR)
    os.utime(path, ns=(1_000, 1_000))
    return path


@pytest.fixture
def warnings(caplog):
    """A function that returns the messages of the package's logger."""
    caplog.set_level(logging.INFO, logger="penstock")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "penstock"]


@pytest.fixture
def scanned_paths(monkeypatch):
    """The shards whose headers were scanned, in order."""
    paths = []
    real_walk_tar = scan.walk_tar
    monkeypatch.setattr(scan, "walk_tar", lambda source, path: paths.append(path) or real_walk_tar(source, path))
    return paths


# -- a stored index that is current --------------------------------------------------------------------------------


def test_a_shard_is_scanned_once(shard, scanned_paths, warnings):
    first = index_shard(shard)
    assert index_shard(shard).keys == first.keys == ["0"]
    assert scanned_paths == [str(shard)]
    assert warnings() == []


def test_rebuild_scans_again(shard, scanned_paths):
    index_shard(shard)
    index_shard(shard, rebuild=True)
    assert len(scanned_paths) == 2


def test_scan_neither_reads_nor_writes_an_index(shard):
    index_path_beside(shard).write_bytes(b"nonsense")
    assert scan.scan_shard(shard).keys == ["0"]
    assert index_path_beside(shard).read_bytes() == b"nonsense"


def test_scan_pairs_by_stated_suffixes(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(tar_bytes([("0.jpg", b"a"), ("1_x.jpg", b"b")]))
    assert scan.scan_shard(path, ["_x.jpg"]).keys == ["0", "1"]
    assert scan.scan_shard(path).keys == ["0", "1_x"]


def test_each_word_that_joins_names_is_logged_once(tmp_path, warnings, monkeypatch):
    monkeypatch.setattr(scan, "_logged_words", set())
    for name in ("a.tar", "b.tar"):
        names = [f"{number}{suffix}" for number in range(3) for suffix in (".jpg", "_edge.npz", "_\x1b[1m.npz")]
        (tmp_path / name).write_bytes(tar_bytes([(name, b"x") for name in names]))
        index_shard(tmp_path / name)
    assert warnings() == [f"{tmp_path}/a.tar: 0_edge.npz is read as a part of sample 0"]


# -- outdated indexes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "mtime_ns", "key"), [(LONGER_TAR, 1_000, "2"), (TAR_OF_SAME_SIZE, 1_001, "1"), (OLD_TAR, 2_000, "0")]
)
def test_an_outdated_index_is_rebuilt_with_a_warning_and_never_used(
    shard, scanned_paths, warnings, content, mtime_ns, key
):
    index_shard(shard)
    shard.write_bytes(content)
    os.utime(shard, ns=(mtime_ns, mtime_ns))
    assert index_shard(shard).keys == [key]
    assert warnings() == [f"{shard}: the shard has changed since it was indexed; rebuilding its index"]
    assert index_shard(shard).keys == [key]
    assert len(scanned_paths) == 2
    assert len(warnings()) == 1


def test_an_index_that_describes_a_plain_shard_as_compressed_is_not_used(shard, warnings):
    """Such an index could place parts beyond the end of the file."""
    scanned = scan.scan_shard(shard)
    save_index(replace(scanned, compression="gz", data_length=1 << 40, keys=["false"]), shard)
    assert index_shard(shard).keys == ["0"]
    assert len(warnings()) == 1


# -- corrupt indexes -----------------------------------------------------------------------------------------------

DAMAGES = {
    "a flipped bit": lambda data: corrupt.flip_bit(data, 30),
    "truncated": lambda data: corrupt.truncate(data, 30),
    "empty": lambda data: b"",
    "an earlier version": lambda data: corrupt.overwrite(data, 7, b"1"),
    "a pickle": lambda data: pickle.dumps(print),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_bad_index_is_rebuilt_with_a_warning_that_names_it(shard, warnings, damage):
    index_shard(shard)
    index_path_beside(shard).write_bytes(damage(index_path_beside(shard).read_bytes()))
    assert index_shard(shard).keys == ["0"]
    [warning] = warnings()
    assert str(index_path_beside(shard)) in warning
    assert warning.endswith("; rebuilding it")
    assert load_index(shard).keys == ["0"]


# -- folders that cannot be written --------------------------------------------------------------------------------


@pytest.fixture
def unwritable(monkeypatch):
    """Folders into which no index can be written."""
    folders = []

    def write_unless_unwritable(path, data):
        if path.parent in folders:
            raise StorageError("no index can be written here", shard=str(path))
        replace_file(path, data)

    monkeypatch.setattr("penstock.shards.index.replace_file", write_unless_unwritable)
    return folders


def test_an_index_in_the_cache_is_used_like_one_beside_the_shard(shard, unwritable, scanned_paths):
    unwritable.append(shard.parent)
    index_shard(shard)
    assert index_path_in_cache(shard).exists()
    assert index_shard(shard).keys == ["0"]
    assert len(scanned_paths) == 1


@pytest.mark.parametrize("state", ["corrupt", "outdated"])
def test_an_unusable_index_in_a_read_only_folder_does_not_hide_the_one_in_the_cache(
    shard, unwritable, scanned_paths, warnings, state
):
    index_shard(shard)
    if state == "outdated":
        os.utime(shard, ns=(5_000, 5_000))
    else:
        index_path_beside(shard).write_bytes(b"nonsense")
    unwritable.append(shard.parent)
    for _ in range(3):
        assert index_shard(shard).keys == ["0"]
    assert len(scanned_paths) == 2
    assert len(warnings()) == 1


def test_an_index_that_cannot_be_stored_is_still_returned(shard, unwritable, warnings):
    unwritable += [shard.parent, index_path_in_cache(shard).parent]
    assert index_shard(shard).keys == ["0"]
    [warning] = warnings()
    assert warning.startswith(f"{shard}: index not stored: ")
    assert "no index can be written here" in warning


# -- shards that change or are bad ---------------------------------------------------------------------------------


def act_during_scan(monkeypatch, action):
    """Call `action` when the headers have been read, before the scan ends."""
    real_walk_tar = scan.walk_tar

    def walk_tar(source, path):
        members = real_walk_tar(source, path)
        action()
        return members

    monkeypatch.setattr(scan, "walk_tar", walk_tar)


def grow(path):
    with path.open("ab") as file:
        file.write(bytes(512))


@pytest.mark.parametrize(
    "action", [grow, lambda path: os.utime(path, ns=(9, 9)), os.remove], ids=["grown", "touched", "removed"]
)
def test_a_shard_that_changes_during_its_scan_is_an_error_and_leaves_no_index(shard, monkeypatch, action):
    act_during_scan(monkeypatch, lambda: action(shard))
    with pytest.raises(ShardError, match="changed while it was being indexed") as caught:
        index_shard(shard)
    assert caught.value.shard == str(shard)
    assert caught.value.advice
    assert not index_path_beside(shard).exists()


def test_a_bad_shard_leaves_no_index(shard):
    shard.write_bytes(OLD_TAR[:514])
    with pytest.raises(TarError):
        index_shard(shard)
    assert not index_path_beside(shard).exists()


def test_a_missing_shard_is_an_error_even_if_its_index_exists(shard):
    index_shard(shard)
    shard.unlink()
    with pytest.raises(StorageError) as caught:
        index_shard(shard)
    assert caught.value.shard == str(shard)


# -- many shards ---------------------------------------------------------------------------------------------------


def test_all_shards_are_indexed_concurrently(tmp_path):
    paths = make_shards(tmp_path, SA1B, samples=12, shards=6, scale=0.02)
    results = {scanned.shard: scanned for scanned in index_shards(paths, threads=3)}
    assert sorted(results) == [str(path) for path in paths]
    assert sorted(key for scanned in results.values() for key in scanned.index.keys) == [SA1B.key(n) for n in range(12)]
    assert all(scanned.rebuilt and scanned.error is None for scanned in results.values())
    assert not any(scanned.rebuilt for scanned in index_shards(paths))
    assert all(scanned.rebuilt for scanned in index_shards(paths, rebuild=True))


def test_errors_are_results_and_the_other_shards_are_indexed(tmp_path, shard):
    (tmp_path / "bad.tar").write_bytes(b"<html>404</html>")
    (tmp_path / "folder.tar").mkdir()
    paths = [shard, tmp_path / "bad.tar", tmp_path / "missing.tar", tmp_path / "folder.tar"]
    results = {scanned.shard: scanned for scanned in index_shards(paths)}
    assert results[str(shard)].index.keys == ["0"]
    for path, error_type in ((paths[1], TarError), (paths[2], StorageError), (paths[3], StorageError)):
        assert results[str(path)].index is None
        assert type(results[str(path)].error) is error_type
        assert results[str(path)].error.shard == str(path)


def test_a_shard_removed_during_its_scan_is_a_result(shard, monkeypatch):
    act_during_scan(monkeypatch, lambda: os.remove(shard))
    [scanned] = index_shards([shard])
    assert type(scanned.error) is ShardError


def test_no_shards_give_no_results():
    assert list(index_shards([])) == []


def test_no_thread_runs_and_no_index_is_partly_written_after_closing_early(tmp_path, scanned_paths):
    paths = [tmp_path / f"{number:03d}.tar" for number in range(100)]
    for path in paths:
        path.write_bytes(OLD_TAR)
    before = threading.active_count()
    results = index_shards(paths, threads=1)
    next(results)
    results.close()
    assert threading.active_count() == before
    count = len(scanned_paths)
    assert 1 <= count <= 100
    assert len(list(tmp_path.glob("*.pidx"))) == count


@pytest.mark.skipif(not hasattr(os, "preadv"), reason="without preadv, this platform uses other calls to read")
@pytest.mark.parametrize("stale_read", [0, 1, 7])
def test_a_stale_handle_during_a_scan_is_recovered(tmp_path, monkeypatch, stale_read):
    path = tmp_path / "a.tar"
    path.write_bytes(tar_bytes((f"{number:03d}.bin", bytes(700)) for number in range(20)))
    expected = scan.scan_shard(path)
    reads, real_preadv = iter(range(1000)), os.preadv

    def preadv(*arguments):
        if next(reads) == stale_read:
            raise OSError(errno.ESTALE, "Stale file handle")
        return real_preadv(*arguments)

    monkeypatch.setattr(os, "preadv", preadv)
    recovered = scan.scan_shard(path)
    assert next(reads) > stale_read
    assert (recovered.keys, recovered.offsets.tolist()) == (expected.keys, expected.offsets.tolist())


def test_a_disk_failure_during_a_scan_is_an_error_with_shard_and_offset(tmp_path, monkeypatch):
    path = tmp_path / "a.tar"
    path.write_bytes(tar_bytes([("0.bin", bytes(700)), ("1.bin", b"")]))

    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "preadv", fail)
    monkeypatch.setattr(local, "pread", fail)
    with pytest.raises(StorageError, match="the file server does not answer") as caught:
        scan.scan_shard(path)
    assert caught.value.where() == {"shard": str(path), "offset": 0, "stage": "read"}
