"""The race's rules, on runs that are made up; and two real contestants on real shards."""

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


class MadeUp:
    """A runner whose runs are a table of rates by entry and workers; what is not in it fails."""

    expected_contents = "agreed"

    def __init__(self, rates, contents="agreed"):
        self.rates, self.delivered, self.ran = rates, contents, []

    def worker_counts(self, entry):
        return entry.workers

    def prepare(self, entry):
        if entry not in {known for known, _ in self.rates}:
            raise PenstockError("long story | no such module")

    def contents(self, entry):
        return self.delivered

    def run(self, entry, workers):
        self.ran.append((entry, workers))
        rate = self.rates[entry, workers]
        if rate is None:
            raise PenstockError("delivered 63 samples for 64, or not each of them once")
        return run(entry, workers, rate)


def test_each_contestant_runs_the_rounds_with_its_best_number_of_workers():
    runner = MadeUp({(WDS, 1): 5, (WDS, 2): 9, (WDS, 4): 7, (OURS, 0): 20})
    (ours, peer) = compare(runner, [OURS, WDS], rounds=3)
    assert (ours.workers, peer.workers) == (0, 2)
    assert [each.rate for each in peer.runs] == [9, 9, 9]


def test_one_worker_is_not_tried_where_four_did_better_than_two():
    runner = MadeUp({(WDS, 2): 5, (WDS, 4): 7})
    (peer,) = compare(runner, [WDS], rounds=1)
    assert runner.ran == [(WDS, 2), (WDS, 4), (WDS, 4)]
    assert peer.workers == 4


def test_the_order_rotates_from_round_to_round():
    runner = MadeUp({(WDS, n): 1 for n in (1, 2, 4)} | {(OURS, 0): 1, (BARE, BARE.workers[0]): 1})
    compare(runner, [OURS, WDS, BARE], rounds=3)
    rounds = [entry for entry, _ in runner.ran[5:]]
    assert rounds == [OURS, WDS, BARE, WDS, BARE, OURS, BARE, OURS, WDS]


def test_who_loses_a_sample_at_one_number_of_workers_is_judged_by_the_others():
    runner = MadeUp({(WDS, 1): 5, (WDS, 2): None, (WDS, 4): None})
    (peer,) = compare(runner, [WDS], rounds=1)
    assert (peer.failure, peer.workers) == (None, 1)


def test_who_always_loses_a_sample_is_out_with_the_reason():
    runner = MadeUp({(WDS, 1): None, (WDS, 2): None, (WDS, 4): None})
    (peer,) = compare(runner, [WDS], rounds=3)
    assert "63 samples for 64" in peer.failure
    assert peer.runs == []


def test_who_cannot_start_is_out_with_the_last_words_of_the_child():
    (peer,) = compare(MadeUp({}), [WDS], rounds=3)
    assert peer.failure == "no such module"


def test_a_peer_whose_values_differ_with_our_decoder_is_out_and_its_own_decoder_may_differ():
    given = Entry("webdataset", "ours")
    runner = MadeUp({(entry, n): 1 for entry in (WDS, given) for n in (1, 2, 4)}, contents="something else")
    own, ours = compare(runner, [WDS, given], rounds=1)
    assert own.failure is None
    assert "other values" in ours.failure


def result(entry, *rates, first=1.0):
    return Result(entry, 2, [run(entry, rate=rate, first=first) for rate in rates])


def test_ratios_are_medians_of_the_rounds_own_ratios():
    ours, peer = result(OURS, 100, 200, 90), result(FIELD, 50, 40, 30)
    (line,) = lines({"imagenet": [ours, peer]})
    assert (line.ratio, line.target, line.reached) == (3.0, 4.5, False)


def test_the_first_batch_is_compared_with_the_better_of_webdataset():
    quick, slow = result(Entry("webdataset", "ours"), 1, first=0.4), result(WDS, 1, first=2.0)
    line = list(lines({"reid": [result(OURS, 9, first=0.1), slow, quick]}))[-1]
    assert (line.ratio, line.sense) == (0.25, "at most")


def test_packed_shards_are_compared_with_the_field_loader_on_those_as_they_were():
    found = lines({"sa1b": [result(OURS, 50), result(PACKED, 130), result(FIELD, 10)]})
    packed = next(line for line in found if "packed" in line.what)
    assert (packed.ratio, packed.target, packed.reached) == (13.0, 12.0, True)


def test_the_table_names_those_who_are_out_and_gives_no_line_for_them():
    lost = Result(SPDL, failure="did not install: no wheel")
    results = {"reid": [result(OURS, 10), lost]}
    (shown,) = tables(results)
    assert list(lines(results)) == []
    assert "did not install: no wheel" in shown.rows[-1][3]
    assert all(len(row) == len(shown.columns) for row in shown.rows)


def test_a_batch_of_another_shape_type_or_layout_is_refused():
    kind = KINDS["reid"]
    good = {
        "__key__": ["a", "b"],
        "image": torch.zeros((2, 3, 256, 128), dtype=torch.uint8),
        "pose": torch.zeros((2, 17, 3), dtype=torch.float32),
    }
    assert checked_keys(kind, good) == ["a", "b"]
    for name, wrong in {
        "image": torch.zeros((2, 256, 128, 3), dtype=torch.uint8).permute(0, 3, 1, 2),
        "pose": torch.zeros((2, 17, 3), dtype=torch.float64),
    }.items():
        with pytest.raises(WrongOutputError, match=name):
            checked_keys(kind, good | {name: wrong})


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
    """The shards of the race are replaced by some that lack one."""
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
        peers = {entry.loader for entry in entries_of(kind) if entry.decoder == "own"}
        given = {entry.loader for entry in entries_of(kind) if entry.decoder == "ours"}
        assert peers - given == {"dali"}
    assert PACKED in entries_of("sa1b")


def test_a_folder_that_was_not_made_to_its_end_does_not_count(tmp_path):
    def fail(folder):
        folder.mkdir()
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        data.once(tmp_path / "made", fail)
    assert list(tmp_path.iterdir()) == []
