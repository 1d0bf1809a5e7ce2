"""Tests of all formats: bytes and labels are kept, a pack continues, bad records are listed with their place."""

import os

import pytest
from tests.support.record_files import CLASSES, SOURCES, ending, labelled_images, write_samples

from penstock.errors import ShardError
from penstock.shards.pack.options import PackOptions
from penstock.shards.pack.plan import make_plan
from penstock.shards.pack.run import pack
from penstock.shards.pack.sources import find_pack_sources
from penstock.shards.pack.write import finished_report
from penstock.shards.scan import scan_shard
from penstock.shards.task_pool import run_in_processes, use_task_runner

pytestmark = pytest.mark.usefixtures("tasks_here")
MIB = 1 << 20


def packed_samples(folder):
    """Return the parts of each sample by key, read from the packed shards."""
    samples = {}
    for shard in sorted(folder.glob("*.tar")):
        data = shard.read_bytes()
        index = scan_shard(shard)
        for number in range(len(index)):
            sample = index.sample(number)
            parts = {part.suffix: data[part.offset : part.offset + part.length] for part in sample.parts}
            assert samples.setdefault(sample.key, parts) is parts
    return samples


def plan_of(src, **options):
    if src.name == "data":  # an LMDB, whose values are parts
        options["require"] = (".jpg|.png", ".cls")
    pack_options = PackOptions(**options)
    return make_plan(list(find_pack_sources(str(src), pack_options)), pack_options)


def in_source_order(source, samples):
    return sorted(samples, key=lambda sample: sample[1]) if source == "folders" else samples


def check_equal(source, folder, samples):
    packed = list(packed_samples(folder).values())
    assert packed == [
        {ending(image): image, ".cls": str(label).encode()} for image, label in in_source_order(source, samples)
    ]


@pytest.mark.parametrize("source", SOURCES)
def test_every_image_and_label_is_packed_byte_for_byte(tmp_path, source):
    samples = labelled_images(23)
    src = write_samples(source, tmp_path / "src", samples)
    plan = plan_of(src)
    assert plan.samples == 23
    list(pack(plan, tmp_path / "packed", workers=1))
    check_equal(source, tmp_path / "packed", samples)


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
def test_ten_thousand_images_are_packed_byte_for_byte(tmp_path, source):
    samples = labelled_images(10_000)
    src = write_samples(source, tmp_path / "src", samples)
    with use_task_runner(run_in_processes):
        list(pack(plan_of(src, shard_bytes=4 * MIB), tmp_path / "packed", workers=2))
    assert len(list((tmp_path / "packed").glob("*.tar"))) > 3
    check_equal(source, tmp_path / "packed", samples)


@pytest.mark.parametrize("source", ["folders", "parquet"])
def test_the_names_of_classes_are_stored_one_per_line(tmp_path, source):
    src = write_samples(source, tmp_path / "src", labelled_images(6))
    list(pack(plan_of(src), tmp_path / "packed"))
    assert (tmp_path / "packed" / "classes.txt").read_text().splitlines() == CLASSES


@pytest.mark.parametrize("source", SOURCES)
def test_the_same_source_gives_the_same_plan_and_another_version_does_not(tmp_path, source):
    src = write_samples(source, tmp_path / "src", labelled_images(9))
    first, second = plan_of(src), plan_of(src)
    assert list(first.tasks()) == list(second.tasks())
    assert first.fingerprint() == second.fingerprint()
    for path in src.rglob("*") if src.is_dir() else [src]:
        os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    assert plan_of(src).fingerprint() != first.fingerprint()


@pytest.mark.parametrize("source", SOURCES)
def test_a_pack_that_was_stopped_continues_and_equals_an_uninterrupted_one(tmp_path, source):
    samples = [(image + bytes(200_000), label) for image, label in labelled_images(20)]  # JPEGs with padding
    samples = [(image, label) for image, label in samples if ending(image) == ".jpg"]
    src = write_samples(source, tmp_path / "src", samples)
    stopped = pack(plan_of(src, shard_bytes=MIB), tmp_path / "packed", workers=1)
    first = next(stopped)
    stopped.close()
    kept = (tmp_path / "packed" / first.name).stat()
    plan = plan_of(src, shard_bytes=MIB)
    assert [finished_report(task, tmp_path / "packed") is not None for task in plan.tasks()].count(True) < len(
        plan.shards
    )
    list(pack(plan, tmp_path / "packed", workers=1))
    assert (tmp_path / "packed" / first.name).stat().st_mtime_ns == kept.st_mtime_ns
    list(pack(plan, tmp_path / "whole", workers=2))
    for shard in (tmp_path / "whole").glob("*.tar"):
        assert (tmp_path / "packed" / shard.name).read_bytes() == shard.read_bytes()
    check_equal(source, tmp_path / "packed", samples)


@pytest.mark.parametrize("source", [source for source in SOURCES if source != "folders"])
def test_a_file_that_changes_during_a_run_ends_it_with_an_error(tmp_path, source):
    plan = plan_of(write_samples(source, tmp_path / "src", labelled_images(6)))
    path = plan.sources[-1].path
    os.utime(path, ns=(0, 1))
    with pytest.raises(ShardError, match="changed since") as caught:
        list(pack(plan, tmp_path / "packed", workers=1))
    assert caught.value.shard == path


@pytest.mark.parametrize("source", SOURCES)
def test_a_record_that_is_no_image_is_left_out_and_listed_with_its_place(tmp_path, source):
    samples = labelled_images(9)
    samples[5] = (b"\xff\xd8\xff<html>", samples[5][1])
    src = write_samples(source, tmp_path / "src", samples)
    plan = plan_of(src, on_bad="skip")
    reports = list(pack(plan, tmp_path / "packed"))
    (skipped,) = [line for report in reports for line in report.skipped]
    assert "JPEG" in skipped["reason"]
    assert skipped["shard"] in [source.path for source in plan.sources]
    number = {"parquet": 1, "tfrecord": 1, "mds": 1, "mds.zstd": 1}.get(source, 5)
    name = "cat/image 00005.jpg" if source == "folders" else f"{number:08d}.jpg"
    assert skipped["member"] == ("000005.jpg" if source == "lmdb" else name)
    assert ("offset" in skipped) == (source in ("folders", "tfrecord", "mds", "mds.zstd"))
    del samples[5]
    check_equal(source, tmp_path / "packed", samples)
