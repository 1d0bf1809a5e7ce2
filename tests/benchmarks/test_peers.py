"""The comparison of loaders: its rules on invented runs, and real loaders on real shards."""

import io
import tarfile

import pytest
import torch
from benchmarks.peers import data
from benchmarks.peers.compare import BARE, OURS, PACKED, Entry, Result, Runner, compare, entries_of
from benchmarks.peers.kinds import KINDS
from benchmarks.peers.report import lines, tables
from benchmarks.peers.task import WrongOutputError, checked_keys

from penstock.bench.loader_run import LoaderRun
from penstock.errors import PenstockError

FIELD, WDS, SPDL = Entry("field", "own"), Entry("webdataset", "own"), Entry("spdl", "own")


def run(entry, workers=2, rate=100.0, first=1.0):
    return LoaderRun(
        loader=str(entry),
        workers=workers,
        samples=64,
        batches=4,
        keys_digest="0",
        first_batch_s=first,
        seconds=1.0,
        rate=rate,
        peak_memory_bytes=1 << 20,
        memory_kind="pss",
        cpu_s_per_sample=0.001,
    )


class TableRunner:
    """A runner that takes rates from a table by entry and workers: None is a run that loses a sample.

    An entry that is not in the table cannot be prepared.
    """

    expected_contents = "agreed"
    delivers_random_values = False

    def __init__(self, rates, contents="agreed"):
        self.rates, self.delivered, self.runs = rates, contents, []

    def worker_counts(self, entry):
        return entry.workers

    def prepare(self, entry):
        if entry not in {entry for entry, _ in self.rates}:
            raise PenstockError("long traceback | no such module")

    def contents(self, entry):
        return self.delivered

    def run(self, entry, workers):
        self.runs.append((entry, workers))
        rate = self.rates[entry, workers]
        if rate is None:
            raise PenstockError("delivered 63 samples for 64, or not each of them once")
        return run(entry, workers, rate)


def test_each_loader_runs_the_rounds_with_its_best_number_of_workers():
    runner = TableRunner({(WDS, 1): 5, (WDS, 2): 9, (WDS, 4): 7, (OURS, 0): 20})
    (ours, peer) = compare(runner, [OURS, WDS], rounds=3)
    assert (ours.workers, peer.workers) == (0, 2)
    assert [each.rate for each in peer.runs] == [9, 9, 9]


def test_one_worker_is_not_tried_if_four_were_better_than_two():
    runner = TableRunner({(WDS, 2): 5, (WDS, 4): 7})
    (peer,) = compare(runner, [WDS], rounds=1)
    assert runner.runs == [(WDS, 2), (WDS, 4), (WDS, 4)]
    assert peer.workers == 4


def test_the_order_rotates_from_round_to_round():
    runner = TableRunner({(WDS, workers): 1 for workers in (1, 2, 4)} | {(OURS, 0): 1, (BARE, BARE.workers[0]): 1})
    compare(runner, [OURS, WDS, BARE], rounds=3)
    rounds = [entry for entry, _ in runner.runs[5:]]
    assert rounds == [OURS, WDS, BARE, WDS, BARE, OURS, BARE, OURS, WDS]


def test_a_loader_that_loses_a_sample_with_some_numbers_of_workers_runs_with_another():
    runner = TableRunner({(WDS, 1): 5, (WDS, 2): None, (WDS, 4): None})
    (peer,) = compare(runner, [WDS], rounds=1)
    assert (peer.failure, peer.workers) == (None, 1)


def test_a_loader_that_always_loses_a_sample_is_excluded_with_the_reason():
    runner = TableRunner({(WDS, 1): None, (WDS, 2): None, (WDS, 4): None})
    (peer,) = compare(runner, [WDS], rounds=3)
    assert "63 samples for 64" in peer.failure
    assert peer.runs == []


def test_a_loader_that_cannot_start_is_excluded_with_the_end_of_its_error():
    (peer,) = compare(TableRunner({}), [WDS], rounds=3)
    assert peer.failure == "no such module"


def test_other_values_exclude_a_peer_with_our_decoder_but_not_with_its_own():
    with_our_decoder = Entry("webdataset", "ours")
    rates = {(entry, workers): 1 for entry in (WDS, with_our_decoder) for workers in (1, 2, 4)}
    own, ours = compare(TableRunner(rates, contents="something else"), [WDS, with_our_decoder], rounds=1)
    assert own.failure is None
    assert "other values" in ours.failure


def result(entry, *rates, first=1.0):
    return Result(entry, 2, [run(entry, rate=rate, first=first) for rate in rates])


def test_a_ratio_is_the_median_of_the_ratios_of_the_rounds():
    ours, peer = result(OURS, 100, 200, 90), result(FIELD, 50, 40, 30)
    (line,) = lines({"imagenet": [ours, peer]})
    assert (line.ratio, line.target, line.reached) == (3.0, 4.5, False)


def test_the_first_batch_is_compared_with_that_of_the_quicker_webdataset():
    quick, slow = result(Entry("webdataset", "ours"), 1, first=0.4), result(WDS, 1, first=2.0)
    line = list(lines({"reid": [result(OURS, 9, first=0.1), slow, quick]}))[-1]
    assert (line.ratio, line.sense) == (0.25, "at most")


def test_packed_shards_are_compared_with_the_field_loader_on_the_original_shards():
    found = lines({"sa1b": [result(OURS, 50), result(PACKED, 130), result(FIELD, 10)]})
    packed = next(line for line in found if "packed" in line.what)
    assert (packed.ratio, packed.target, packed.reached) == (13.0, 12.0, True)


def test_an_excluded_loader_is_in_the_table_but_has_no_line():
    excluded = Result(SPDL, failure="did not install: no wheel")
    results = {"reid": [result(OURS, 10), excluded]}
    (table,) = tables(results)
    assert list(lines(results)) == []
    assert "did not install: no wheel" in table.rows[-1][3]
    assert all(len(row) == len(table.columns) for row in table.rows)


def test_a_batch_of_another_shape_type_or_layout_is_refused():
    kind = KINDS["reid"]
    batch = {
        "__key__": ["a", "b"],
        "image": torch.zeros((2, 3, 256, 128), dtype=torch.uint8),
        "pose": torch.zeros((2, 17, 3), dtype=torch.float32),
    }
    assert checked_keys(kind, batch) == ["a", "b"]
    for name, wrong in {
        "image": torch.zeros((2, 256, 128, 3), dtype=torch.uint8).permute(0, 3, 1, 2),
        "pose": torch.zeros((2, 17, 3), dtype=torch.float64),
    }.items():
        with pytest.raises(WrongOutputError, match=name):
            checked_keys(kind, batch | {name: wrong})


@pytest.fixture
def runner():
    return Runner("reid", quick=True)


@pytest.mark.bench
def test_webdataset_with_our_decoder_delivers_our_values(runner):
    runner.prepare(OURS)
    assert runner.contents(Entry("webdataset", "ours")) == runner.expected_contents


@pytest.mark.bench
def test_the_field_loader_and_the_bare_loop_deliver_every_key_once(runner):
    assert runner.run(FIELD, 2).samples == KINDS["reid"].quick.samples
    assert runner.run(BARE, 2).samples == KINDS["reid"].quick.samples


@pytest.mark.bench
def test_a_run_that_lost_a_sample_is_refused(runner):
    """The first shard is replaced by one that lacks a sample."""
    kind = KINDS["reid"]
    shard = data.shards_of(kind, quick=True)[0]
    samples = list(data.samples_in(kind, shard))[1:]
    with tarfile.open(shard, "w") as tar:
        for key, parts in samples:
            for suffix, content in parts.items():
                member = tarfile.TarInfo(key + suffix)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    with pytest.raises(PenstockError, match="255 samples for 256"):
        runner.run(FIELD, 1)


def test_every_kind_has_entries_with_its_own_decoder_and_with_ours():
    for kind in ("sa1b", "imagenet", "reid"):
        with_own = {entry.loader for entry in entries_of(kind) if entry.decoder == "own"}
        with_ours = {entry.loader for entry in entries_of(kind) if entry.decoder == "ours"}
        assert with_own - with_ours == {"dali"}
    assert PACKED in entries_of("sa1b")


def test_a_folder_that_could_not_be_completed_is_removed(tmp_path):
    def fail(folder):
        folder.mkdir()
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        data.once(tmp_path / "dataset", fail)
    assert list(tmp_path.iterdir()) == []
