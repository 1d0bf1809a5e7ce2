"""Recordings made by the simulator: what the watcher would have written had this run taken place."""

from dataclasses import dataclass, field

import numpy as np

from penstock.model.simulation_data import CPU, IO, LATENCY, WorkerPool, make_batch_costs
from penstock.model.simulator import simulate
from penstock.recording.format import (
    EpochStartLine,
    FetchLine,
    LoaderLine,
    LoaderSetting,
    Machine,
    ProcessLoad,
    RunLine,
    StackSamplesLine,
    StepLine,
    StorageLine,
    SystemLine,
)
from penstock.recording.reader import Recording

SAMPLES = 16
STORAGE = {
    "loader": 0,
    "read_bytes": 65536,
    "sequential_alone": 0,
    "sequential_together": 0,
    "random_alone": 0,
    "random_together": 0,
}


@dataclass
class Made:
    """A run to be: change what matters for the test, then `recording()`."""

    workers: int = 4
    prefetch: int = 2
    count: int = 200
    cores: float = 8
    step_s: float = 0.02
    receive_s: float = 0.0002
    cpu_s: object = 0.01
    latency_s: object = 0.0
    io_s: object = 0.0
    lag: dict = field(default_factory=dict)
    """Worker → seconds more for each of its batches, computing."""
    competitors: float = 0.0
    storage: object = None
    states: dict = field(default_factory=dict)
    """Of the workers' looks, beside running."""
    main_states: dict = field(default_factory=dict)
    system: dict = field(default_factory=dict)
    main: dict = field(default_factory=dict)
    """Of the main process in the system's looks."""
    settings: dict = field(default_factory=dict)
    phases: dict = field(default_factory=dict)
    fetch: dict = field(default_factory=dict)
    """More about each fetch."""
    collate: float = 0.0
    """Share of a fetch."""
    passes: int = 1
    startup_s: float = 0.0
    events: tuple = ()
    dataset_size: int | None = 100_000
    step_cpu: float = 0.3
    after: dict = field(default_factory=dict)
    """What the storage gave after the run."""

    def recording(self):
        steps, fetches, passes, at = [], [], [], 0.0
        for number in range(self.passes):
            passes.append(EpochStartLine(loader=0, epoch=number, at_s=at))
            more, made, at = self._pass(number, at)
            steps += more
            fetches += made
        settings = {"num_workers": self.workers, "prefetch_factor": self.prefetch, **self.settings}
        machine = Machine(
            **{"cores": int(self.cores), "usable_cores": int(self.cores), **self.system.pop("machine", {})}
        )
        looks = self._looks(at, fetches)
        return Recording(
            run=RunLine(machine=machine),
            loaders={
                0: LoaderLine(
                    loader=0,
                    type="torch",
                    settings={name: LoaderSetting(requested=v, in_force=v) for name, v in settings.items()},
                    dataset_size=self.dataset_size,
                    batches=self.count,
                )
            },
            epochs=tuple(passes),
            steps=tuple(steps),
            fetches=tuple(fetches),
            system=looks,
            stack_samples=self._where(fetches),
            events=self.events,
            storage=(StorageLine(**{**STORAGE, "readers": self.workers, **self.after}),) if self.after else (),
        )

    def _pass(self, number, begin_s):
        work = {"cpu_s": self.cpu_s, "latency_s": self.latency_s, "io_s": self.io_s}
        needs = make_batch_costs(self.count, step_s=self.step_s, receive_s=self.receive_s, **work)
        lag = np.zeros((4, self.workers if self.lag else 0))
        for worker, seconds in self.lag.items():
            lag[CPU, worker] = seconds
        more = {"storage": self.storage} if self.storage else {}
        pool = WorkerPool(self.workers, self.prefetch, True, self.cores, self.competitors, lag=lag, **more)
        result = simulate(needs, pool)
        first = begin_s + self.startup_s
        steps = [
            StepLine(
                loader=0,
                epoch=number,
                batch=at,
                at_s=first + asked - (self.startup_s if at == 0 else 0),
                wait_s=wait + (self.startup_s if at == 0 else 0),
                step_s=self.step_s,
                samples=SAMPLES,
                ready=int(ready),
                outstanding=self.workers * self.prefetch,
                worker=int(worker),
                phases=dict(self.phases),
            )
            for at, (asked, wait, ready, worker) in enumerate(
                zip(result.requested_s, result.wait_s, result.ready_batches, result.worker, strict=True)
            )
        ]
        return steps, self._fetches(number, first, needs, result, lag), first + result.end_s

    def _fetches(self, number, first, needs, result, lag):
        free, made = {}, []
        for at in range(self.count):
            worker, finished = int(result.worker[at]), float(result.finished_s[at])
            given = (
                float(result.received_s[at - self.workers * self.prefetch]) if at >= self.workers * self.prefetch else 0
            )
            begin = max(given, free.get(worker, 0.0))
            free[worker] = finished
            cpu = float(needs.work[CPU, at]) + (float(lag[CPU, worker]) if lag.shape[1] else 0.0)
            waited = float(needs.work[LATENCY, at])
            waited += (finished - begin - cpu - waited) if needs.work[IO].any() else 0.0
            elapsed = max(finished - begin, cpu + waited) if self.workers else cpu + waited
            made.append(
                FetchLine(
                    loader=0,
                    epoch=number,
                    batch=at,
                    worker=worker,
                    at_s=first + begin,
                    fetch_s=elapsed,
                    cpu_s=cpu,
                    queue_s=max(0.0, elapsed - cpu - waited),
                    collate_s=self.collate * elapsed,
                    samples=SAMPLES,
                    slowest_s=elapsed / 2
                    if elapsed > 2 * float(np.median(needs.work.sum(axis=0)))
                    else elapsed / SAMPLES,
                    **self.fetch,
                )
            )
        return made

    def _looks(self, end_s, fetches):
        cpu = sum(fetch.cpu_s for fetch in fetches) / end_s
        processes = (
            ProcessLoad(**{"cpu": self.step_cpu, **self.main}),
            *(ProcessLoad(loader=0, worker=worker, cpu=cpu / self.workers) for worker in range(self.workers)),
        )
        return tuple(
            SystemLine(at_s=float(at), **{"others_cpu": self.competitors, "processes": processes, **self.system})
            for at in np.arange(0.0, end_s, 1.0)
        )

    def _where(self, fetches):
        lines = []
        if self.states or self.main_states:
            running = 100 - sum(self.states.values())
            lines.append(
                StackSamplesLine(loader=0, worker=0, at_s=1.0, samples=100, states={"running": running, **self.states})
            )
            running = 100 - sum(self.main_states.values())
            lines.append(StackSamplesLine(at_s=1.0, samples=100, states={"running": running, **self.main_states}))
        return tuple(lines)
