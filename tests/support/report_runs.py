"""Recordings and diagnoses of known shape for the tests of reports: computed, so that every number is known."""

from dataclasses import replace

from penstock.core.finding import Diagnosis, Finding, Impact, RankSummary, RankWait, RejectedCause
from penstock.recording.format import (
    DiskLoad,
    EndLine,
    EpochStartLine,
    FetchLine,
    Gpu,
    GpuLoad,
    HopsLine,
    LoaderLine,
    LoaderSetting,
    Machine,
    RunLine,
    StepLine,
    SystemLine,
)
from penstock.recording.reader import Recording

RUN = RunLine(
    penstock="0.1",
    began_unix_s=1.76e9,
    command=("python", "train.py", "--epochs", "1"),
    machine=Machine(
        cores=16, usable_cores=8, memory_bytes=64 << 30, python="3.11.7", torch="2.13.0", gpus=(Gpu(name="H200"),)
    ),
)


def torch_run(*, batches=200, workers=8, prefetch=2, fetch_s=1.0, step_s=0.05, samples=24, run=RUN, name="train"):
    """Return the recording of a run of torch's DataLoader with these seconds per batch and per step.

    Delivery is in order, so that there is a stall every `workers` batches if the workers are too slow. As in torch, a
    worker gets its next task when one of its batches is received.
    """
    task_s = [0.0] * (workers * prefetch)  # when task i was sent to its worker
    idle_s = [0.0] * workers  # when the worker finished its last task
    finished_s, fetches, steps = [], [], []

    def fetch(batch):
        worker = batch % workers
        start_s = max(task_s[batch], idle_s[worker])
        idle_s[worker] = start_s + fetch_s
        finished_s.append(idle_s[worker])
        fetches.append(
            FetchLine(loader=0, batch=batch, worker=worker, at_s=start_s, fetch_s=fetch_s, collate_s=fetch_s / 10,
                  cpu_s=fetch_s * 0.8, samples=samples)
        )  # fmt: skip

    now_s = 0.0
    for batch in range(workers * prefetch):
        fetch(batch)
    for batch in range(batches):
        received_s = max(now_s, finished_s[batch])
        ready = sum(each <= now_s for each in finished_s[batch:])
        steps.append(
            StepLine(loader=0, batch=batch, at_s=now_s, wait_s=received_s - now_s, step_s=step_s, samples=samples,
                 ready=ready, outstanding=len(finished_s) - batch, worker=batch % workers,
                 phases={"forward": step_s * 0.3, "backward": step_s * 0.5, "backward/sync": step_s * 0.1,
                         "optimizer": step_s * 0.1},
                 device_phases={"forward": step_s * 0.28})
        )  # fmt: skip
        task_s.append(received_s)
        fetch(len(task_s) - 1)
        now_s = received_s + step_s
    settings = {
        "num_workers": LoaderSetting(requested=32, in_force=workers),
        "prefetch_factor": LoaderSetting(in_force=prefetch),
        "batch_size": LoaderSetting(requested=samples, in_force=samples),
    }
    busy = step_s * batches / now_s
    return Recording(
        run=run,
        loaders={
            0: LoaderLine(loader=0, name=name, type="torch", settings=settings, dataset="Folder", batches=batches)
        },
        epochs=(EpochStartLine(loader=0, epoch=0, at_s=0.0),),
        steps=tuple(steps),
        fetches=tuple(line for line in fetches if line.at_s < now_s),
        system=system_lines(now_s, busy),
        end=EndLine(at_s=now_s),
    )


def system_lines(seconds, busy):
    """Return a system line per second with small variations; `busy` is the utilisation of the GPU."""
    return tuple(
        SystemLine(
            at_s=float(second),
            cpu=6.0 + second % 3 * 0.5,
            others_cpu=0.5,
            disks=(DiskLoad(name="sda", read_bytes_s=2e8 + second % 5 * 2e7, busy=0.5 + 0.05 * (second % 4)),),
            gpus=(GpuLoad(utilisation=busy),),
        )
        for second in range(1, int(seconds) + 1)
    )


def stalling():
    """Return a run of 8 workers with 1 s per batch and 50 ms steps: one batch in 8 is late, 60% is waiting."""
    return torch_run()


def healthy():
    """Return a run whose workers load three times as fast as the loop consumes."""
    return torch_run(fetch_s=0.13, batches=400)


def hops_run():
    """Return a run of penstock.Loader, which records hops instead of fetches."""
    steps = tuple(
        StepLine(loader=0, batch=batch, at_s=batch * 0.1, wait_s=0.02, step_s=0.08, samples=32) for batch in range(300)
    )
    lines = tuple(
        HopsLine(
            loader=0,
            at_s=t,
            hops={
                "read": (t * 0.3, 0.0, t * 0.7),
                "decode": (t * 7.6, t * 0.3, t * 0.1),
                "deliver": (t * 0.1, t * 0.8, t * 0.1),
                "step": (t * 0.8, t * 0.2, 0.0),
            },
            workers=8,
            readers=2,
        )
        for t in (1.0, 10.0, 20.0, 30.0)
    )
    loader = LoaderLine(loader=0, name="train", type="penstock")
    return Recording(run=RUN, loaders={0: loader}, steps=steps, hops=lines, system=system_lines(30, 0.8))


def empty():
    """Return the recording of a script that ended before its first batch."""
    return Recording(run=RunLine(), loaders={}, notes=("1 line skipped: cut short at the end (line 2)",))


def findings(**changes):
    """Return a diagnosis with a value in every field."""
    worst = Finding(
        rule="too_few_workers", gain=0.85, gain_low=0.7, gain_high=0.99, confidence=0.94,
        summary="8 workers need 1.0 s for a batch, so a batch comes every 125 ms; the step takes 50 ms.",
        evidence=("ready batches at the stall: 0 of 16", "all workers busy 99% of the time", "cores in use: 6.5 of 16"),
        advice="Raise num_workers from 8 to 16.",
        experiment="Run 200 batches with num_workers=4: the rate should halve.",
    )  # fmt: skip
    second = Finding(rule="slow_collate", gain=0.1, gain_low=0.05, gain_high=0.12, confidence=0.6,
                     summary="Collate takes 100 ms of the 1.0 s.")  # fmt: skip
    fields = {
        "verdict": "findings",
        "sentence": "Data comes too slowly: 60% of the time the loop waits, since 8 workers are too few for this step.",
        "findings": (worst, second),
        "rejected": (
            RejectedCause(rule="lagging_worker", why="all 8 workers take the same time (0.99 to 1.01 s)"),
            RejectedCause(rule="storage_bandwidth", why="the disk is busy 55% of the time"),
        ),
        "impact": Impact(run_s=3600, waited_s=2160, share=0.6, per_epoch_s=240, gpu_hours=0.6),
        "notes": ("num_workers was changed",),
    }
    return Diagnosis(**{**fields, **changes})


def all_well():
    """Return the diagnosis of a healthy run."""
    impact = Impact(run_s=20, waited_s=0.01, share=0.0005)
    return Diagnosis(verdict="healthy", sentence="The data arrives in time.", impact=impact)


def undetermined():
    """Return the diagnosis of a run that is too short."""
    return Diagnosis(
        verdict="undetermined",
        sentence="Nothing can be said: no steps were recorded.",
        experiment="Record at least 50 batches.",
    )


def gpu_run(*gpu_times):
    """Return a run of penstock.Loader with these GPU times, two seconds apart."""
    lines = tuple(
        HopsLine(loader=0, at_s=2.0 * number, hops={"step": (2.0 * number, 0.0, 0.0)}, gpu_times=times)
        for number, times in enumerate(gpu_times)
    )
    loader = LoaderLine(loader=0, name="train", type="penstock")
    return Recording(run=RunLine(), loaders={0: loader}, hops=lines)


RANKS_SENTENCE = "Rank 3 holds the others back"


def of_ranks(count=4):
    """Return the diagnosis of a run of several ranks."""
    each = tuple(RankWait(rank=rank, waited_s=rank + 1.0, last=rank / 10, alone_s=float(rank)) for rank in range(count))
    ranks = RankSummary(sentence=f"{RANKS_SENTENCE}.", steps=99, exposed_s=9.0, share=0.3, holder=3, each=each)
    return replace(all_well(), ranks=ranks)
