"""Indexing by tasks, here on processes of this machine: what a task does is the same on a cluster."""

import shutil

from penstock.errors import WorkerCrash
from penstock.shards.cluster import index_tasks
from penstock.shards.cluster.index_tasks import index_by_tasks
from penstock.shards.index import index_path_beside
from penstock.shards.scan import index_shards
from penstock.shards.task_pool import TaskOutcome, use_task_runner
from penstock.testing import SA1B, make_shards


def test_shards_are_indexed_and_counted_as_by_threads(tmp_path):
    shards = [str(path) for path in make_shards(tmp_path / "a", SA1B, samples=10, shards=5, scale=0.05)]
    (tmp_path / "a" / "broken.tar").write_bytes(b"x" * 1000)
    shards.append(str(tmp_path / "a" / "broken.tar"))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    twins = [shard.replace(str(tmp_path / "a"), str(tmp_path / "b")) for shard in shards]
    by_tasks = {found.shard: found for found in index_by_tasks(shards, threads=2, workers=2)}
    by_threads = {scanned.shard: index_tasks.IndexedShard.of(scanned) for scanned in index_shards(twins)}
    assert len(by_tasks) == len(by_threads) == 6
    for shard, twin in zip(shards, twins, strict=True):
        one, other = by_tasks[shard], by_threads[twin]
        assert (one.samples, one.parts, one.rebuilt) == (other.samples, other.parts, other.rebuilt)
        assert (one.error is None) == (other.error is None) == ("broken" not in shard)
        assert index_path_beside(shard).exists() == ("broken" not in shard)
    again = [found.rebuilt for found in index_by_tasks(shards[:5], threads=2, workers=1)]
    assert again == [False] * 5


def test_each_shard_of_a_task_that_keeps_dying_is_named():
    def dying(work, tasks, workers):
        for task in tasks:
            yield TaskOutcome(task, None, WorkerCrash("its worker died", stage="work"))

    with use_task_runner(dying):
        found = list(index_by_tasks(["a.tar", "b.tar", "c.tar"], threads=2))
    assert [str(each.error) for each in found] == [f"its worker died [shard {name}.tar]" for name in "abc"]


def test_an_index_that_other_nodes_will_not_see_is_told(tmp_path, caplog, monkeypatch):
    [shard] = map(str, make_shards(tmp_path, SA1B, samples=2, shards=1, scale=0.05))
    beside = index_path_beside
    monkeypatch.setattr(
        "penstock.shards.cluster.index_tasks.index_path_beside", lambda shard: beside(str(shard) + "/nowhere")
    )
    [found] = index_tasks._index_group((shard,), rebuild=False)
    assert found.error is None
    assert "of one node only" in caplog.text
