"""Recordings as runs of known shape leave them: made by arithmetic, so that every number is known."""

from penstock.core.finding import Diagnosis, Finding, Impact, RejectedCause
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
    """In-order delivery over workers that are slow each on its own: a stall every `workers` batches if supply is short.

    A worker gets its next task when one of its batches is taken, as torch does it.
    """
    given = [0.0] * (workers * prefetch)  # when task i was given to its worker
    free = [0.0] * workers
    made, fetches, steps = [], [], []

    def make(batch):
        worker = batch % workers
        start_s = max(given[batch], free[worker])
        free[worker] = start_s + fetch_s
        made.append(free[worker])
        fetches.append(
            FetchLine(loader=0, batch=batch, worker=worker, at_s=start_s, fetch_s=fetch_s, collate_s=fetch_s / 10,
                  cpu_s=fetch_s * 0.8, samples=samples)
        )  # fmt: skip

    now_s = 0.0
    for batch in range(workers * prefetch):
        make(batch)
    for batch in range(batches):
        got_s = max(now_s, made[batch])
        ready = sum(done_s <= now_s for done_s in made[batch:])
        steps.append(
            StepLine(loader=0, batch=batch, at_s=now_s, wait_s=got_s - now_s, step_s=step_s, samples=samples, ready=ready,
                 outstanding=len(made) - batch, worker=batch % workers,
                 phases={"forward": step_s * 0.3, "backward": step_s * 0.5, "backward/sync": step_s * 0.1,
                         "optimizer": step_s * 0.1},
                 device_phases={"forward": step_s * 0.28})
        )  # fmt: skip
        given.append(got_s)
        make(len(given) - 1)
        now_s = got_s + step_s
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
        fetches=tuple(fetch for fetch in fetches if fetch.at_s < now_s),
        system=machine_looks(now_s, busy),
        end=EndLine(at_s=now_s),
    )


def machine_looks(seconds, busy):
    """One look a second, with a little ripple."""
    return tuple(
        SystemLine(
            at_s=float(at),
            cpu=6.0 + at % 3 * 0.5,
            others_cpu=0.5,
            disks=(DiskLoad(name="sda", read_bytes_s=2e8 + at % 5 * 2e7, busy=0.5 + 0.05 * (at % 4)),),
            gpus=(GpuLoad(utilisation=busy),),
        )
        for at in range(1, int(seconds) + 1)
    )


def stalling():
    """8 workers of 1 s a batch, 50 ms steps: one batch in 8 comes late, 60% of the time is waiting."""
    return torch_run()


def healthy():
    """Supply is three times what the loop takes."""
    return torch_run(fetch_s=0.13, batches=400)


def hops_run():
    """A penstock.Loader: no fetches of its own, hops instead."""
    steps = tuple(
        StepLine(loader=0, batch=batch, at_s=batch * 0.1, wait_s=0.02, step_s=0.08, samples=32) for batch in range(300)
    )
    lines = tuple(
        HopsLine(loader=0, at_s=at, hops={"read": (at * 0.3, 0.0, at * 0.7), "decode": (at * 7.6, at * 0.3, at * 0.1),
                                      "deliver": (at * 0.1, at * 0.8, at * 0.1), "step": (at * 0.8, at * 0.2, 0.0)},
             workers=8, readers=2)
        for at in (1.0, 10.0, 20.0, 30.0)
    )  # fmt: skip
    loader = LoaderLine(loader=0, name="train", type="penstock")
    return Recording(run=RUN, loaders={0: loader}, steps=steps, hops=lines, system=machine_looks(30, 0.8))


def empty():
    """A script that died before its first batch."""
    return Recording(run=RunLine(), loaders={}, notes=("1 line skipped: cut short at the end (line 2)",))


def findings(**changes):
    """A diagnosis that says something in every field."""
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
        "notes": ("num_workers was changed on the way",),
    }
    return Diagnosis(**{**fields, **changes})


def all_well():
    """Nothing to say."""
    impact = Impact(run_s=20, waited_s=0.01, share=0.0005)
    return Diagnosis(verdict="healthy", sentence="The data arrives in time.", impact=impact)


def undetermined():
    """Not enough to go by."""
    return Diagnosis(
        verdict="undetermined",
        sentence="Nothing can be said: no steps were recorded.",
        experiment="Record at least 50 batches.",
    )
