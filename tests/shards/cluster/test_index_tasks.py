import shutil

from penstock.errors import WorkerCrash
from penstock.shards.cluster import index_tasks
from penstock.shards.cluster.index_tasks import index_by_tasks
from penstock.shards.index import index_path_beside
from penstock.shards.scan import index_shards
from penstock.shards.task_pool import TaskOutcome, use_task_runner
from penstock.testing import SA1B, make_shards


def test_tasks_give_the_same_counts_and_indexes_as_threads(tmp_path):
    shards = [str(path) for path in make_shards(tmp_path / "a", SA1B, samples=10, shards=5, scale=0.05)]
    (tmp_path / "a" / "broken.tar").write_bytes(b"x" * 1000)
    shards.append(str(tmp_path / "a" / "broken.tar"))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    copies = [shard.replace(str(tmp_path / "a"), str(tmp_path / "b")) for shard in shards]
    by_tasks = {indexed.shard: indexed for indexed in index_by_tasks(shards, threads=2, workers=2)}
    by_threads = {scanned.shard: index_tasks.IndexedShard.of(scanned) for scanned in index_shards(copies)}
    assert len(by_tasks) == len(by_threads) == 6
    for shard, copy in zip(shards, copies, strict=True):
        task_result, thread_result = by_tasks[shard], by_threads[copy]
        assert task_result.samples == thread_result.samples
        assert task_result.parts == thread_result.parts
        assert task_result.rebuilt == thread_result.rebuilt
        assert (task_result.error is None) == (thread_result.error is None) == ("broken" not in shard)
        assert index_path_beside(shard).exists() == ("broken" not in shard)
    rebuilt_again = [indexed.rebuilt for indexed in index_by_tasks(shards[:5], threads=2, workers=1)]
    assert rebuilt_again == [False] * 5


def test_a_task_whose_worker_dies_gives_an_error_for_each_of_its_shards():
    def crash_every_task(work, tasks, workers):
        for task in tasks:
            yield TaskOutcome(task, None, WorkerCrash("its worker died", stage="work"))

    with use_task_runner(crash_every_task):
        results = list(index_by_tasks(["a.tar", "b.tar", "c.tar"], threads=2))
    assert [str(result.error) for result in results] == [f"its worker died [shard {name}.tar]" for name in "abc"]


def test_an_index_in_the_cache_of_one_node_is_reported_with_a_warning(tmp_path, caplog, monkeypatch):
    [shard] = map(str, make_shards(tmp_path, SA1B, samples=2, shards=1, scale=0.05))
    real_function = index_path_beside
    monkeypatch.setattr(
        "penstock.shards.cluster.index_tasks.index_path_beside", lambda shard: real_function(str(shard) + "/nowhere")
    )
    [indexed] = index_tasks._index_group((shard,), rebuild=False)
    assert indexed.error is None
    assert "cache of one node" in caplog.text
