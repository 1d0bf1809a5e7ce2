"""All cases, each in one place: its script, settings in two sizes, accepted causes, and how the truth is measured.

A case runs its script twice: `planted` with the fault, recorded and diagnosed, and `removed` without it. The measured
gain is the ratio of the rates that the script itself prints. In a healthy case `removed` is the change that a user
would try first. What was measured judges a case: if `removed` gains less than 5%, the right verdict has no finding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchmarks.faults_independent import data as make
from benchmarks.faults_independent.means import (
    ColdCache,
    HttpStore,
    Means,
    Neighbours,
    SlowMount,
    StoppedWorker,
    disk_rate,
    disk_requests,
    memory,
    quota,
)

Size = Literal["small", "large"]
SIZES: tuple[Size, ...] = ("small", "large")


@dataclass(frozen=True)
class Side:
    """One of the two runs of a case."""

    args: str = ""
    """Arguments of the script; {data} is the folder, {plain} the same without a mount, {out} a scratch folder."""
    means: tuple[Means, ...] = ()


@dataclass(frozen=True)
class Case:
    """A training with one fault, or none."""

    name: str
    script: str
    """A file in scripts/, without `.py`."""
    fault: str
    """The fault in a sentence, or the reason why a healthy training might be taken for a faulty one."""
    accepted: tuple[str, ...]
    """The causes that are right; empty for a healthy training."""
    truth: str
    """The difference of the second run."""
    common: tuple[str, str]
    """Arguments of both runs, small and large."""
    planted: Side
    removed: Side
    made: tuple[tuple[str, make.Maker], tuple[str, make.Maker]] | None = None
    """The dataset of each size, with its name."""
    why_several: str = ""
    """Why each of several causes is right."""
    ranks: int = 1


def _data(name: str, small: make.Maker, large: make.Maker) -> tuple[tuple[str, make.Maker], tuple[str, make.Maker]]:
    return ((f"{name}-small", small), (f"{name}-large", large))


def _same(name: str, maker: make.Maker) -> tuple[tuple[str, make.Maker], tuple[str, make.Maker]]:
    return ((name, maker), (name, maker))


PHOTOS = _data("photos", make.images(400, 160, 200), make.images(400, 320, 400))
MANY_PHOTOS = _same("many-photos", make.images(1200, 96, 128))
BIG_AND_SMALL = _data(
    "two-resolutions",
    make.both(original=make.images(60, 1000, 1400), reduced=make.images(60, 128, 160)),
    make.both(original=make.images(60, 2000, 2800), reduced=make.images(60, 128, 160)),
)
WITH_HUGE = _data(
    "a-few-huge",
    make.both(all=make.images(600, 96, 128, huge=8), usual=make.images(600, 96, 128)),
    make.both(all=make.images(600, 160, 200, huge=16), usual=make.images(600, 160, 200)),
)
TWO_HUGE = _same("two-huge", make.both(all=make.images(600, 96, 128, huge=2), usual=make.images(600, 96, 128)))
BITMAPS = _data("png", make.images(160, 256, 256, "png"), make.images(120, 480, 480, "png"))
ROWS = _same("rows", make.rows(200_704, 256))
TEXT = _same("text", make.sentences(4000, 24))
RECORDS = _same("records", make.database)
SCANS = _data(
    "scans",
    make.both(chunks=make.scans(128, 96, 32), single=make.scans(128, 96, 1)),
    make.both(chunks=make.scans(128, 160, 64), single=make.scans(128, 160, 1)),
)
TARS = _same("tars", make.tars((200, 200, 200, 200), 160, 200))
LARGER_TARS = _same("larger-tars", make.tars((200, 200, 200, 200), 320, 400))
UNEVEN_TARS = _data(
    "uneven-tars",
    make.both(uneven=make.tars((120, 680), 320, 400), even=make.tars((400, 400), 320, 400)),
    make.both(uneven=make.tars((100, 100, 900, 100), 320, 400), even=make.tars((300, 300, 300, 300), 320, 400)),
)
ONE_TAR = _same("one-tar", make.both(one=make.tars((800,), 320, 400), split=make.tars((400, 400), 320, 400)))
LINES = _same("lines", make.lines(4, 6000, 40))
FOLDERS = _same("folders", make.arrays(4, 200))

FAULTY = (
    Case(
        name="large_jpegs",
        script="folder_cnn",
        fault="JPEGs have 1.4 or 5.6 megapixels and are reduced to 96 pixels in the workers.",
        accepted=("decode_bound",),
        truth="the same photographs, reduced beforehand",
        made=BIG_AND_SMALL,
        common=("--workers 2 --epochs 12 --persistent", "--workers 2 --epochs 6 --persistent --batch-size 12"),
        planted=Side("--data {data}/original"),
        removed=Side("--data {data}/reduced"),
    ),
    Case(
        name="elastic_distortions",
        script="folder_cnn",
        fault="Every image is distorted several times over, by torch operators in the workers.",
        accepted=("decode_bound",),
        truth="without distortions",
        made=PHOTOS,
        common=("--workers 2 --epochs 2 --persistent", "--workers 2 --epochs 2 --size 128 --persistent --width 12"),
        planted=Side("--data {data} --heavy 8"),
        removed=Side("--data {data}"),
    ),
    Case(
        name="no_workers",
        script="folder_cnn",
        fault="num_workers is 0, so that the loop waits while it decodes.",
        accepted=("no_overlap",),
        truth="two workers",
        made=PHOTOS,
        common=("--epochs 4 --width 16", "--epochs 3 --width 24 --batch-size 32"),
        planted=Side("--data {data} --workers 0"),
        removed=Side("--data {data} --workers 2 --persistent"),
    ),
    Case(
        name="no_workers_text",
        script="csv_transformer",
        fault="num_workers is 0, and the items are tokenised in Python.",
        accepted=("no_overlap",),
        truth="two workers",
        made=TEXT,
        common=("--tokenise item --steps 150", "--tokenise item --steps 100 --dim 64 --layers 2"),
        planted=Side("--data {data}/train.csv --workers 0"),
        removed=Side("--data {data}/train.csv --workers 2"),
    ),
    Case(
        name="one_worker",
        script="folder_cnn",
        fault="One worker decodes, one core is mostly free.",
        accepted=("too_few_workers",),
        truth="two workers",
        made=PHOTOS,
        common=("--epochs 4 --persistent --heavy 2", "--epochs 3 --persistent --heavy 3 --width 4"),
        planted=Side("--data {data} --workers 1"),
        removed=Side("--data {data} --workers 2"),
    ),
    Case(
        name="one_worker_remote",
        script="http_regress",
        fault="One worker downloads one sample after the other from a server that serves many at once.",
        accepted=("too_few_workers", "latency_bound"),
        why_several="each request takes long, and one worker has one request in flight; more workers hide it",
        truth="eight workers",
        common=("--samples 800 --hidden 512", "--samples 600 --hidden 1024 --batch-size 8"),
        planted=Side("--host {host} --workers 1", (HttpStore(6),)),
        removed=Side("--host {host} --workers 8", (HttpStore(6),)),
    ),
    Case(
        name="workers_start_every_epoch",
        script="folder_cnn",
        fault="Epochs are short, workers are not persistent, and each builds a table when it starts.",
        accepted=("worker_startup",),
        truth="persistent workers",
        made=PHOTOS,
        common=(
            "--workers 2 --epochs 14 --steps 8 --vocabulary 1500000",
            "--workers 2 --epochs 8 --steps 16 --vocabulary 4000000",
        ),
        planted=Side("--data {data}"),
        removed=Side("--data {data} --persistent"),
    ),
    Case(
        name="loader_made_every_epoch",
        script="lines_lm",
        fault="The DataLoader is made anew in every epoch, so that its workers start again.",
        accepted=("worker_startup", "recreated_loader"),
        why_several="the time lost is that of starting workers; a rule of its own may name why they start",
        truth="one loader, persistent workers",
        made=_data("few-lines", make.lines(2, 250, 12), make.lines(2, 500, 12)),
        common=("--epochs 60", "--epochs 40 --dim 24"),
        planted=Side("--data {data} --new-loader"),
        removed=Side("--data {data}"),
    ),
    Case(
        name="threads_in_every_worker",
        script="folder_cnn",
        fault="worker_init_fn gives each of four workers eight threads of torch.",
        accepted=("cpu_oversubscribed",),
        truth="one thread per worker",
        made=PHOTOS,
        common=(
            "--workers 4 --persistent --heavy 3 --epochs 2",
            "--workers 4 --persistent --heavy 4 --epochs 2 --size 128",
        ),
        planted=Side("--data {data} --threads-per-worker 8"),
        removed=Side("--data {data} --threads-per-worker 1"),
    ),
    Case(
        name="pinned_to_one_core",
        script="folder_cnn",
        fault="The script pins itself and its workers to one core.",
        accepted=("cpu_oversubscribed",),
        truth="not pinned",
        made=PHOTOS,
        common=("--workers 2 --persistent --epochs 3 --heavy 1", "--workers 4 --persistent --epochs 3 --width 16"),
        planted=Side("--data {data} --one-core"),
        removed=Side("--data {data}"),
    ),
    Case(
        name="quota",
        script="folder_cnn",
        fault="A cgroup gives the job 0.8 or 1.2 cores of the machine.",
        accepted=("cpu_quota",),
        truth="without the quota",
        made=PHOTOS,
        common=(
            "--workers 2 --persistent --epochs 3 --heavy 1",
            "--workers 2 --persistent --epochs 3 --width 12 --heavy 1",
        ),
        planted=Side("--data {data}", (quota(0.8),)),
        removed=Side("--data {data}"),
    ),
    Case(
        name="hashing_neighbours",
        script="folder_cnn",
        fault="Other programs compute checksums on all cores.",
        accepted=("noisy_neighbour",),
        truth="without them",
        made=PHOTOS,
        common=(
            "--workers 2 --persistent --epochs 3 --heavy 1",
            "--workers 2 --persistent --epochs 3 --width 12 --heavy 1",
        ),
        planted=Side("--data {data}", (Neighbours(4),)),
        removed=Side("--data {data}"),
    ),
    Case(
        name="neighbours_of_text",
        script="lines_lm",
        fault="Other programs compute checksums on all cores, and the samples are lines of text.",
        accepted=("noisy_neighbour",),
        truth="without them",
        made=LINES,
        common=("--dim 16 --parse-rounds 4", "--dim 32 --parse-rounds 8"),
        planted=Side("--data {data}", (Neighbours(3),)),
        removed=Side("--data {data}"),
    ),
    Case(
        name="one_worker_stopped",
        script="folder_cnn",
        fault="Worker 3 of four is stopped and continued by signals, most of the time.",
        accepted=("lagging_worker",),
        truth="without signals",
        made=PHOTOS,
        common=("--workers 4 --persistent --epochs 4", "--workers 4 --persistent --epochs 3 --width 16"),
        planted=Side("--data {data}", (StoppedWorker(3, 0.6, 0.2),)),
        removed=Side("--data {data}"),
    ),
    Case(
        name="one_slow_mount_of_four",
        script="per_worker_sources",
        fault="Each of four workers reads its own folder, and the last folder lies on a slow mount.",
        accepted=("lagging_worker",),
        truth="all folders on the disk",
        made=FOLDERS,
        common=("--samples 3200", "--samples 3200 --hidden 128 --batch-size 32"),
        planted=Side("--data {plain}/a {plain}/b {plain}/c {data}/d", (SlowMount(open_ms=12),)),
        removed=Side("--data {plain}/a {plain}/b {plain}/c {plain}/d"),
    ),
    Case(
        name="a_few_huge_images",
        script="folder_cnn",
        fault="A few images among hundreds have 12 megapixels.",
        accepted=("straggler_samples",),
        truth="the same without those images",
        made=WITH_HUGE,
        common=("--workers 2 --persistent --epochs 4 --width 16", "--workers 2 --persistent --epochs 3 --width 16"),
        planted=Side("--data {data}/all"),
        removed=Side("--data {data}/usual"),
    ),
    Case(
        name="opening_takes_long",
        script="folder_cnn",
        fault="A mount takes 15 ms to open a file, as a busy NFS server does.",
        accepted=("latency_bound", "small_files"),
        why_several="each sample waits for one answer of the storage, because each sample is a file",
        truth="the same files on the disk",
        made=PHOTOS,
        common=("--workers 2 --persistent --epochs 2", "--workers 4 --persistent --epochs 2 --width 16"),
        planted=Side("--data {data}", (SlowMount(open_ms=15),)),
        removed=Side("--data {plain}"),
    ),
    Case(
        name="reads_take_long",
        script="tar_wds",
        fault="Every read request of a mount takes 60 ms, however many are in flight.",
        accepted=("latency_bound", "storage_bandwidth"),
        why_several="requests of one size, each with a delay, are a limit in bytes per second too",
        truth="the same shards on the disk",
        made=LARGER_TARS,
        common=("--width 8", "--width 16 --workers 4"),
        planted=Side("--data {data}", (SlowMount(read_ms=60),)),
        removed=Side("--data {plain}"),
    ),
    Case(
        name="narrow_mount",
        script="folder_cnn",
        fault="A mount delivers 6 or 12 MB/s to all workers together.",
        accepted=("storage_bandwidth",),
        truth="the same files on the disk",
        made=BITMAPS,
        common=("--workers 2 --persistent --epochs 2", "--workers 4 --persistent --epochs 2 --width 12"),
        planted=Side("--data {data}", (SlowMount(mbps=6),)),
        removed=Side("--data {plain}"),
    ),
    Case(
        name="narrow_mount_of_shards",
        script="tar_wds",
        fault="Shards lie on a mount that delivers 1 MB/s.",
        accepted=("storage_bandwidth",),
        truth="the same shards on the disk",
        made=TARS,
        common=("--width 8", "--width 16 --batch-size 32"),
        planted=Side("--data {data}", (SlowMount(mbps=1),)),
        removed=Side("--data {plain}"),
    ),
    Case(
        name="limited_disk",
        script="memmap_mlp",
        fault="A cgroup limits the disk to 25 MB/s, and the memmap is not in the page cache.",
        accepted=("storage_bandwidth",),
        truth="without the limit",
        made=ROWS,
        common=("--rows 32 --samples 5000", "--rows 64 --samples 2800 --hidden 128"),
        planted=Side("--data {data}/rows.f32", (ColdCache(), disk_rate(25))),
        removed=Side("--data {data}/rows.f32", (ColdCache(),)),
    ),
    Case(
        name="scattered_rows",
        script="memmap_mlp",
        fault="Samples gather rows from all over a memmap, on a disk that serves 400 requests per second.",
        accepted=("random_access", "latency_bound"),
        why_several="small reads all over the file, each of which waits for the disk",
        truth="without the limit",
        made=ROWS,
        common=("--scattered --rows 8 --samples 400", "--scattered --rows 16 --samples 250 --hidden 128"),
        planted=Side("--data {data}/rows.f32", (ColdCache(), disk_requests(400))),
        removed=Side("--data {data}/rows.f32", (ColdCache(),)),
    ),
    Case(
        name="evicted_cache",
        script="memmap_mlp",
        fault="Another program evicts the file from the page cache: each epoch reads it from a limited disk.",
        accepted=("cache_miss", "memory_pressure", "storage_bandwidth"),
        why_several="the file would fit into memory but is evicted, and the disk then is what limits",
        truth="nothing evicts the file; the disk has the same limit",
        made=ROWS,
        common=("--rows 16 --samples 1500 --epochs 6", "--rows 32 --samples 1000 --epochs 6 --hidden 128"),
        planted=Side("--data {data}/rows.f32", (ColdCache(every_s=0.2), disk_rate(25))),
        removed=Side("--data {data}/rows.f32", (ColdCache(), disk_rate(25))),
    ),
    Case(
        name="workers_keep_samples",
        script="memmap_mlp",
        # The run needs 276 MB without the copies and 469 MB with them, as seen with torch 2.13; the file has 196 MB.
        fault="Workers keep a copy of every sample, so that the file no longer fits into the memory limit of a cgroup.",
        accepted=("memory_pressure", "cache_miss", "storage_bandwidth"),
        why_several="memory is short, so that the file is read again, from a disk that is limited",
        truth="workers keep nothing; memory and disk have the same limits",
        made=ROWS,
        common=(
            "--rows 96 --samples 2048 --epochs 4 --hidden 16",
            "--rows 96 --samples 2048 --epochs 5 --hidden 64 --batch-size 32",
        ),
        planted=Side("--data {data}/rows.f32 --keep-samples", (ColdCache(), memory(540), disk_rate(40))),
        removed=Side("--data {data}/rows.f32", (ColdCache(), memory(540), disk_rate(40))),
    ),
    Case(
        name="slow_from_the_middle",
        script="folder_cnn",
        fault="After 4 s a mount begins to take 25 ms for each file.",
        accepted=("regime_change", "latency_bound", "small_files"),
        why_several="the rate changes once, and after that the storage's answers are late",
        truth="the mount stays quick",
        made=PHOTOS,
        common=("--workers 2 --persistent --epochs 5 --width 16", "--workers 2 --persistent --epochs 4 --width 24"),
        planted=Side("--data {data}", (SlowMount(open_ms=25, after_s=4),)),
        removed=Side("--data {data}", (SlowMount(),)),
    ),
    Case(
        name="distant_store",
        script="http_regress",
        fault="A server takes 20 ms for every answer, and workers ask for one sample at a time.",
        accepted=("latency_bound",),
        truth="16 threads per worker ask at once",
        common=("--samples 700 --workers 2", "--samples 900 --workers 4 --hidden 2048"),
        planted=Side("--host {host} --threads 1", (HttpStore(20),)),
        removed=Side("--host {host} --threads 16", (HttpStore(20),)),
    ),
    Case(
        name="late_answers",
        script="http_regress",
        fault="Two of a hundred answers of a server take half a second.",
        accepted=("tail_latency",),
        truth="no answer is late",
        common=("--samples 1000 --workers 2 --hidden 512", "--samples 1200 --workers 4 --hidden 1024"),
        planted=Side("--host {host}", (HttpStore(2, 0.02, 500),)),
        removed=Side("--host {host}", (HttpStore(2),)),
    ),
    Case(
        name="tokenised_in_collate",
        script="csv_transformer",
        fault="The collate function tokenises all sentences of a batch in Python.",
        accepted=("slow_collate",),
        truth="tokenised before the training",
        made=TEXT,
        common=("--steps 200", "--steps 120 --batch-size 64 --workers 2 --dim 48"),
        planted=Side("--data {data}/train.csv --tokenise collate"),
        removed=Side("--data {data}/train.csv --tokenise ahead"),
    ),
    Case(
        name="weights_in_collate",
        script="hdf5_unet",
        fault="The collate function computes weights of all pixels by repeated pooling.",
        accepted=("slow_collate",),
        truth="without the weights",
        made=SCANS,
        common=("--samples 700", "--samples 300 --channels 8"),
        planted=Side("--data {data}/single/scans.h5 --erosions 60"),
        removed=Side("--data {data}/single/scans.h5"),
    ),
    Case(
        name="drawn_one_by_one",
        script="csv_transformer",
        fault="A weighted sampler calls numpy.random.choice over all weights for every single sample.",
        accepted=("sampler_overhead",),
        truth="all samples drawn at once",
        made=TEXT,
        common=("--steps 150 --weights 5", "--steps 100 --weights 12 --dim 48"),
        planted=Side("--data {data}/train.csv --draws one-by-one"),
        removed=Side("--data {data}/train.csv --draws at-once"),
    ),
    Case(
        name="bootstrap_in_every_step",
        script="csv_transformer",
        fault="Every step computes a confusion matrix with a bootstrap in Python.",
        accepted=("main_process_python",),
        truth="computed every 50 steps",
        made=TEXT,
        common=("--steps 200 --confusion-rounds 400", "--steps 120 --confusion-rounds 600 --dim 48"),
        planted=Side("--data {data}/train.csv --confusion-every 1"),
        removed=Side("--data {data}/train.csv --confusion-every 50"),
    ),
    Case(
        name="synced_log",
        script="folder_cnn",
        fault="The loss of every step is written to a file and synced to the disk.",
        accepted=("logging_overhead",),
        truth="written, not synced",
        made=MANY_PHOTOS,
        common=(
            "--workers 2 --persistent --batch-size 2 --size 48 --epochs 2 --width 4",
            "--workers 2 --persistent --batch-size 4 --size 48 --epochs 3 --width 4",
        ),
        planted=Side("--data {data} --log {out}/loss.txt --sync-log"),
        removed=Side("--data {data} --log {out}/loss.txt"),
    ),
    Case(
        name="many_checkpoints",
        script="folder_cnn",
        fault="A checkpoint of 100 MB is saved every five steps.",
        accepted=("benign_pauses", "checkpoint_stall"),
        why_several="the pauses are checkpoints; a rule of its own may name them",
        truth="no checkpoint",
        made=PHOTOS,
        common=(
            "--workers 2 --persistent --epochs 3 --memory-bank 200000",
            "--workers 2 --persistent --epochs 3 --width 16 --memory-bank 400000",
        ),
        planted=Side("--data {data} --save {out}/model.pt --save-every 5"),
        removed=Side("--data {data}"),
    ),
    Case(
        name="many_evaluations",
        script="folder_cnn",
        fault="Every ten steps ten batches of another loader are evaluated.",
        accepted=("benign_pauses",),
        truth="no evaluation",
        made=PHOTOS,
        common=("--workers 2 --persistent --epochs 3", "--workers 2 --persistent --epochs 3 --width 16"),
        planted=Side("--data {data} --evaluate-every 10"),
        removed=Side("--data {data}"),
    ),
    Case(
        name="file_lock",
        script="sqlite_mlp",
        fault="Workers take turns by flock while they read and parse.",
        accepted=("lock_contention",),
        truth="no lock",
        made=RECORDS,
        common=("--samples 4000 --per-sample 16", "--samples 3000 --per-sample 32 --hidden 512"),
        planted=Side("--data {data}/records.db --lock flock"),
        removed=Side("--data {data}/records.db"),
    ),
    Case(
        name="exclusive_transactions",
        script="sqlite_mlp",
        fault="Every sample is read in an exclusive transaction of SQLite that also counts its use.",
        accepted=("lock_contention",),
        truth="read without a transaction",
        made=RECORDS,
        common=("--samples 600 --per-sample 16", "--samples 600 --per-sample 32 --hidden 512"),
        planted=Side("--data {data}/records.db --lock exclusive"),
        removed=Side("--data {data}/records.db"),
    ),
    Case(
        name="large_chunks",
        script="hdf5_unet",
        fault="HDF5 deflates 32 or 64 images as one chunk, which is inflated for every image.",
        accepted=("decode_bound",),
        truth="a chunk per image",
        made=SCANS,
        common=("--samples 700", "--samples 300 --channels 8"),
        planted=Side("--data {data}/chunks/scans.h5"),
        removed=Side("--data {data}/single/scans.h5"),
    ),
    Case(
        name="uneven_shards",
        script="tar_wds",
        fault="One worker has most of the samples in its shards and goes on alone.",
        accepted=("shard_imbalance",),
        truth="shards of equal size",
        made=UNEVEN_TARS,
        common=("--workers 2", "--workers 4 --width 4"),
        planted=Side("--data {data}/uneven"),
        removed=Side("--data {data}/even"),
    ),
    Case(
        name="one_shard_for_two_workers",
        script="tar_wds",
        fault="There is one shard, so that the second worker has nothing to do.",
        accepted=("shard_imbalance",),
        truth="two shards of half the size",
        made=ONE_TAR,
        common=("--workers 2 --epochs 2", "--workers 2 --epochs 2 --batch-size 32"),
        planted=Side("--data {data}/one"),
        removed=Side("--data {data}/split"),
    ),
    Case(
        name="every_worker_parses_all",
        script="lines_lm",
        fault="Every worker parses every line and keeps its share.",
        accepted=("decode_bound",),
        truth="files divided between the workers",
        made=LINES,
        common=("--parse-rounds 10", "--parse-rounds 16 --dim 24"),
        planted=Side("--data {data} --split modulo"),
        removed=Side("--data {data} --split files"),
    ),
    Case(
        name="many_small_tensors",
        script="tensors_resnet",
        fault="A batch consists of thousands of tensors of one number each.",
        accepted=("ipc_copy",),
        truth="one tensor per entry, by the default collate function",
        common=(
            "--samples 1000 --parts 30 --sharing file_system",
            "--samples 800 --parts 60 --sharing file_system --width 12",
        ),
        planted=Side("--lists"),
        removed=Side(),
    ),
    Case(
        name="tiny_batches",
        script="tensors_resnet",
        fault="The batch size is 1 or 2, so that the fixed costs of a step dominate.",
        accepted=("small_batch",),
        truth="batches of 64",
        common=("--samples 3000 --size 16 --blocks 4", "--samples 4000 --size 32 --blocks 3"),
        planted=Side("--batch-size 2"),
        removed=Side("--batch-size 64"),
    ),
    Case(
        name="collected_in_every_step",
        script="memmap_mlp",
        fault="Every step runs a full garbage collection over a growing history.",
        accepted=("gc_pauses",),
        truth="without those collections",
        made=ROWS,
        common=("--samples 1600 --rows 32 --hidden 512 --keep 50", "--samples 1600 --rows 64 --hidden 512 --keep 100"),
        planted=Side("--data {data}/rows.f32 --collect-every 1"),
        removed=Side("--data {data}/rows.f32"),
    ),
    Case(
        name="threads_hold_the_gil",
        script="thread_prefetch",
        fault="Four threads of the training process prepare samples in pure Python.",
        accepted=("main_process_python", "no_overlap"),
        why_several="the loop's process computes the samples; its interpreter's lock is what is short",
        truth="the same in two worker processes",
        common=("--samples 12000", "--samples 8000 --rounds 5000 --hidden 768"),
        planted=Side("--threads 4 --workers 0"),
        removed=Side("--threads 0 --workers 2"),
    ),
    Case(
        name="one_rank_reads_slowly",
        script="ddp_gloo",
        fault="The folder of the second rank lies on a mount that takes 8 ms per file.",
        accepted=("latency_bound", "small_files"),
        why_several="as for `opening_takes_long`; the verdict is about the rank that is late",
        truth="both folders on the disk",
        made=FOLDERS,
        common=("--samples 600", "--samples 600 --hidden 128"),
        planted=Side("--data {plain}/a {data}/b", (SlowMount(open_ms=8),)),
        removed=Side("--data {plain}/a {plain}/b"),
        ranks=2,
    ),
)

HEALTHY = (
    Case(
        name="balanced_cnn",
        script="folder_cnn",
        fault="Two workers decode more than the step takes.",
        accepted=(),
        truth="all images in memory",
        made=PHOTOS,
        common=("--workers 2 --persistent --epochs 1 --width 96", "--workers 2 --persistent --epochs 1 --width 128"),
        planted=Side("--data {data}"),
        removed=Side("--data {data} --in-memory"),
    ),
    Case(
        name="no_workers_needed",
        script="tensors_resnet",
        fault="num_workers is 0, and a sample costs microseconds.",
        accepted=(),
        truth="two workers",
        common=("--samples 3000 --width 24 --stride 1", "--samples 1500 --width 48 --stride 1"),
        planted=Side("--workers 0"),
        removed=Side("--workers 2"),
    ),
    Case(
        name="item_on_the_cpu",
        script="tensors_resnet",
        fault="Every step calls .item(), which costs nothing without a GPU.",
        accepted=(),
        truth="no .item()",
        common=("--samples 3000 --width 24 --stride 1", "--samples 1500 --width 48 --stride 1"),
        planted=Side("--item-every 1"),
        removed=Side(),
    ),
    Case(
        name="hidden_latency",
        script="folder_cnn",
        fault="A mount takes 4 ms to open a file, but four workers wait for it beside a long step.",
        accepted=(),
        truth="the same files on the disk",
        made=PHOTOS,
        common=("--workers 4 --persistent --epochs 1 --width 96", "--workers 4 --persistent --epochs 1 --width 128"),
        planted=Side("--data {data}", (SlowMount(open_ms=4),)),
        removed=Side("--data {plain}"),
    ),
    Case(
        name="nice_neighbour",
        script="tensors_resnet",
        fault="One other program runs at the lowest priority.",
        accepted=(),
        truth="without it",
        common=("--samples 3000 --width 24 --stride 1", "--samples 1500 --width 48 --stride 1"),
        planted=Side("--workers 1", (Neighbours(1, nice=19),)),
        removed=Side("--workers 1"),
    ),
    Case(
        name="log_without_sync",
        script="folder_cnn",
        fault="The loss of every step is written to a file, which is not synced.",
        accepted=(),
        truth="no log",
        made=PHOTOS,
        common=("--workers 2 --persistent --epochs 1 --width 96", "--workers 2 --persistent --epochs 1 --width 128"),
        planted=Side("--data {data} --log {out}/loss.txt"),
        removed=Side("--data {data}"),
    ),
    Case(
        name="huge_images_absorbed",
        script="folder_cnn",
        fault="Two images of 12 megapixels among 600, but the prefetched batches outlast them.",
        accepted=(),
        truth="without those images",
        made=TWO_HUGE,
        common=(
            "--workers 2 --prefetch 8 --persistent --epochs 1 --width 96",
            "--workers 2 --prefetch 8 --persistent --epochs 1 --width 128",
        ),
        planted=Side("--data {data}/all"),
        removed=Side("--data {data}/usual"),
    ),
    Case(
        name="short_epochs_kept_workers",
        script="folder_cnn",
        fault="Epochs are short, but the workers are persistent.",
        accepted=(),
        truth="all images in memory",
        made=PHOTOS,
        common=(
            "--workers 2 --persistent --epochs 4 --steps 8 --width 96",
            "--workers 2 --persistent --epochs 4 --steps 8 --width 128",
        ),
        planted=Side("--data {data}"),
        removed=Side("--data {data} --in-memory"),
    ),
    Case(
        name="tokenised_in_time",
        script="csv_transformer",
        fault="The collate function tokenises, but the model takes longer.",
        accepted=(),
        truth="tokenised before the training",
        made=TEXT,
        common=(
            "--steps 120 --dim 128 --layers 2 --workers 2 --batch-size 16",
            "--steps 60 --dim 256 --layers 2 --workers 2 --batch-size 16",
        ),
        planted=Side("--data {data}/train.csv --tokenise collate"),
        removed=Side("--data {data}/train.csv --tokenise ahead"),
    ),
    Case(
        name="unlocked_database",
        script="sqlite_mlp",
        fault="Workers read a SQLite database at once, without locks, for a large network.",
        accepted=(),
        truth="twice the workers",
        made=RECORDS,
        common=("--samples 4000 --per-sample 1 --hidden 60000", "--samples 3000 --per-sample 2 --hidden 120000"),
        planted=Side("--data {data}/records.db --workers 1"),
        removed=Side("--data {data}/records.db --workers 2"),
    ),
    Case(
        name="long_first_step",
        script="folder_cnn",
        fault="The first step takes 3 s, as with a compiler; afterwards loading keeps up.",
        accepted=(),
        truth="all images in memory",
        made=PHOTOS,
        common=(
            "--workers 2 --persistent --epochs 1 --width 96 --warm-up-s 3",
            "--workers 2 --persistent --epochs 1 --width 128 --warm-up-s 3",
        ),
        planted=Side("--data {data}"),
        removed=Side("--data {data} --in-memory"),
    ),
    Case(
        name="accumulated_unet",
        script="hdf5_unet",
        fault="The optimizer runs every fourth step only; the step is the limit.",
        accepted=(),
        truth="twice the workers",
        made=SCANS,
        common=("--samples 400 --channels 24", "--samples 150 --channels 32"),
        planted=Side("--data {data}/single/scans.h5 --workers 1"),
        removed=Side("--data {data}/single/scans.h5 --workers 2"),
    ),
    Case(
        name="balanced_shards",
        script="tar_wds",
        fault="The step is the limit; shards are of equal size.",
        accepted=(),
        truth="twice the workers",
        made=TARS,
        common=("--width 96 --workers 1", "--width 192 --workers 1"),
        planted=Side("--data {data}"),
        removed=Side("--data {data} --workers 2"),
    ),
    Case(
        name="parsed_in_time",
        script="lines_lm",
        fault="Every worker parses every line, but the model takes longer.",
        accepted=(),
        truth="files divided between the workers",
        made=_same("less-lines", make.lines(4, 800, 20)),
        common=("--dim 128 --batch-size 32", "--dim 192 --batch-size 32"),
        planted=Side("--data {data} --split modulo"),
        removed=Side("--data {data} --split files"),
    ),
    Case(
        name="latency_hidden_by_threads",
        script="http_regress",
        fault="A server takes 20 ms for every answer, but workers ask for many samples at once.",
        accepted=(),
        truth="a server without the delay",
        common=(
            "--samples 2400 --workers 2 --threads 16 --hidden 8000",
            "--samples 1600 --workers 2 --threads 16 --hidden 16000",
        ),
        planted=Side("--host {host}", (HttpStore(20),)),
        removed=Side("--host {host}", (HttpStore(0),)),
    ),
    Case(
        name="rare_evaluations",
        script="folder_cnn",
        fault="One short evaluation in the whole run.",
        accepted=(),
        truth="no evaluation",
        made=PHOTOS,
        common=("--workers 2 --persistent --epochs 1 --width 96", "--workers 2 --persistent --epochs 1 --width 128"),
        planted=Side("--data {data} --evaluate-every 20 --evaluate-batches 1"),
        removed=Side("--data {data}"),
    ),
)

CASES = FAULTY + HEALTHY
