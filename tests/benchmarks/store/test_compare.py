"""Two loaders on a real store, and the report on a comparison of loaders."""

from dataclasses import replace

import pytest
from benchmarks.peers.compare import Entry, Result
from benchmarks.peers.task import content_digest
from benchmarks.result import Line, Table
from benchmarks.store.compare import OURS, PEER_WORKERS, PLAIN, Runner
from benchmarks.store.loaders import plain, webdataset
from benchmarks.store.objects import SAMPLE_BYTES, Size, folder_of, samples_of
from benchmarks.store.report import findings
from benchmarks.store.server import Store
from benchmarks.store.task import AGREED, Task, stacked

from benchmarks.store import compare
from penstock.bench.loader_run import LoaderRun, digest

TINY = Size(shards=2, samples=16, batch_size=4)
WDS, LITDATA = Entry("webdataset", "ours"), Entry("litdata", "ours")


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_CACHE", str(tmp_path_factory.mktemp("cache")))
        with Store(latency_s=0.001, bytes_per_s=1e9).serving(folder_of(TINY)) as address:
            task = Task(address, TINY, workers=2)
            for name, value in task.environment.items():
                patch.setenv(name, value)
            yield task


def test_webdataset_delivers_the_samples_of_the_store(task):
    samples = (sample for shard in range(TINY.shards) for sample in samples_of(TINY, shard))
    assert content_digest(AGREED, webdataset.prepare(task)()) == content_digest(AGREED, [stacked(samples)])


def test_plain_reads_deliver_every_key_once(task):
    delivered = [key for batch in plain.prepare(task)() for key in batch["__key__"]]
    assert sorted(delivered) == TINY.keys


def test_peers_may_have_more_workers_than_there_are_cores():
    runner = Runner(TINY, "", "")
    assert runner.worker_counts(OURS) == (0,)
    assert runner.worker_counts(LITDATA) == PEER_WORKERS


def run(mb_s):
    """Return a run with this rate in MB/s."""
    return LoaderRun(
        loader="",
        workers=0,
        samples=64,
        batches=4,
        keys_digest="0",
        first_batch_s=1.0,
        seconds=1.0,
        rate=mb_s * 1e6 / SAMPLE_BYTES,
        peak_memory_bytes=1 << 20,
        memory_kind="pss",
        cpu_s_per_sample=None,
    )


def test_the_rate_is_that_of_the_whole_run_including_downloads(monkeypatch):
    runner = Runner(TINY, "", "")
    fast_after_download = replace(run(9e9), samples=len(TINY.keys), keys_digest=digest(TINY.keys), seconds=2.0)
    monkeypatch.setattr(compare, "run_in_child", lambda _arguments: fast_after_download)
    assert runner.run(LITDATA, 4).rate == len(TINY.keys) / 2


def lines_and_tables(results):
    report = list(findings(results, 500.0))
    return [each for each in report if isinstance(each, Line)], [each for each in report if isinstance(each, Table)]


def test_penstock_is_compared_with_plain_reads_and_with_peers():
    results = [
        Result(PLAIN, 32, [run(400), run(500)]),
        Result(OURS, 0, [run(360), run(450)]),
        Result(WDS, 4, [run(200), run(300)]),
    ]
    lines, _ = lines_and_tables(results)
    assert [(line.target, pytest.approx(line.ratio), line.reached) for line in lines] == [
        (0.85, 0.9, True),
        (2.0, (1.8 + 1.5) / 2, False),
    ]
    assert lines[0].other == "32 reads in flight: 450 MB/s"


def test_an_excluded_loader_is_the_last_row_with_the_reason():
    _, (table,) = lines_and_tables([Result(LITDATA, failure="no such module"), Result(OURS, 0, [run(360)])])
    assert [row[0].split()[0] for row in table.rows] == ["Penstock", "litdata"]
    assert "no such module" in table.rows[-1][2]
    assert all(len(row) == len(table.columns) for row in table.rows)


def test_nothing_is_compared_without_a_result_of_penstock():
    lines, _ = lines_and_tables([Result(OURS, failure="failed"), Result(WDS, 4, [run(200)])])
    assert lines == []
