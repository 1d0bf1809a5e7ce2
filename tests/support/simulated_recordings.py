"""Recordings of simulated runs: what the watcher would have written if such a run of torch's DataLoader took place."""

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
"""Samples per batch."""
STORAGE = {
    "loader": 0,
    "read_bytes": 65536,
    "sequential_alone": 0,
    "sequential_together": 0,
    "random_alone": 0,
    "random_together": 0,
}
"""Fields of the line on the storage that a test does not set."""


@dataclass
class TorchRun:
    """The properties of a run of torch's DataLoader; a test changes those that matter and calls `recording()`."""

    workers: int = 4
    prefetch: int = 2
    count: int = 200
    """Batches per epoch."""
    cores: float = 8
    step_s: object = 0.02
    """Seconds of the loop's own work: one number, or an array with one per batch."""
    step_cpu_s: float = 0.0
    """Seconds of each step that need a core."""
    receive_s: float = 0.0002
    """Seconds of the main process to receive a batch from a worker."""
    cpu_s: object = 0.01
    """Computing per batch, in seconds: one number, or an array with one per batch. So are the next two."""
    latency_s: object = 0.0
    io_s: object = 0.0
    lag: dict = field(default_factory=dict)
    """Worker → seconds that it computes longer for each of its batches."""
    competitors: float = 0.0
    """Cores that other programs want."""
    storage: object = None
    """Throughput of the storage as a function of the number of readers; see `WorkerPool.storage`."""
    states: dict = field(default_factory=dict)
    """State → how many of 100 stack samples of a worker found it in this state; the rest found it running."""
    main_states: dict = field(default_factory=dict)
    """The same for the main process."""
    system: dict = field(default_factory=dict)
    """Fields of every system line, and under "machine" those of the facts about the machine."""
    main: dict = field(default_factory=dict)
    """Load of the main process in every system line."""
    settings: dict = field(default_factory=dict)
    phases: dict = field(default_factory=dict)
    """Phase → seconds in every step."""
    fetch: dict = field(default_factory=dict)
    """Fields of every fetch line."""
    collate: float = 0.0
    """Share of each fetch that is spent in collate_fn."""
    epochs: int = 1
    startup_s: float = 0.0
    """Seconds that the first batch of every epoch comes later, because workers start."""
    events: tuple = ()
    dataset_size: int | None = 100_000
    step_cpu: float = 0.3
    """CPU time of the main process, in seconds per second."""
    after: dict = field(default_factory=dict)
    """Fields of the line on the storage, which is measured after the run; empty: there is no such line."""

    def recording(self):
        steps, fetches, epoch_starts, now_s = [], [], [], 0.0
        for epoch in range(self.epochs):
            epoch_starts.append(EpochStartLine(loader=0, epoch=epoch, at_s=now_s))
            epoch_steps, epoch_fetches, now_s = self._run_epoch(epoch, now_s)
            steps += epoch_steps
            fetches += epoch_fetches
        settings = {"num_workers": self.workers, "prefetch_factor": self.prefetch, **self.settings}
        machine = Machine(
            **{"cores": int(self.cores), "usable_cores": int(self.cores), **self.system.get("machine", {})}
        )
        return Recording(
            run=RunLine(machine=machine),
            loaders={
                0: LoaderLine(
                    loader=0,
                    type="torch",
                    settings={name: LoaderSetting(requested=value, in_force=value) for name, value in settings.items()},
                    dataset_size=self.dataset_size,
                    batches=self.count,
                )
            },
            epochs=tuple(epoch_starts),
            steps=tuple(steps),
            fetches=tuple(fetches),
            system=self._system_lines(now_s, fetches),
            stack_samples=self._stack_samples(),
            events=self.events,
            storage=(StorageLine(**{**STORAGE, "readers": self.workers, **self.after}),) if self.after else (),
        )

    def _run_epoch(self, epoch, start_s):
        """Simulate an epoch; return its steps, its fetches and its end."""
        costs = make_batch_costs(
            self.count,
            step_s=self.step_s,
            step_cpu_s=self.step_cpu_s,
            receive_s=self.receive_s,
            cpu_s=self.cpu_s,
            latency_s=self.latency_s,
            io_s=self.io_s,
        )
        lag = np.zeros((4, self.workers if self.lag else 0))
        for worker, seconds in self.lag.items():
            lag[CPU, worker] = seconds
        storage = {"storage": self.storage} if self.storage else {}
        pool = WorkerPool(self.workers, self.prefetch, True, self.cores, self.competitors, lag=lag, **storage)
        result = simulate(costs, pool)
        first_s = start_s + self.startup_s
        step_s = np.append(result.requested_s[1:], result.end_s) - result.received_s
        steps = [
            StepLine(
                loader=0,
                epoch=epoch,
                batch=batch,
                at_s=first_s + requested_s - (self.startup_s if batch == 0 else 0),
                wait_s=wait_s + (self.startup_s if batch == 0 else 0),
                step_s=float(step_s[batch]),
                samples=SAMPLES,
                ready=int(ready),
                outstanding=self.workers * self.prefetch,
                worker=int(worker),
                phases=dict(self.phases),
            )
            for batch, (requested_s, wait_s, ready, worker) in enumerate(
                zip(result.requested_s, result.wait_s, result.ready_batches, result.worker, strict=True)
            )
        ]
        return steps, self._fetch_lines(epoch, first_s, costs, result, lag), first_s + result.end_s

    def _fetch_lines(self, epoch, first_s, costs, result, lag):
        """Return a line per batch. A worker begins one when it has the task and has finished its last batch."""
        outstanding = self.workers * self.prefetch
        free_s, fetches = {}, []
        for batch in range(self.count):
            worker, finished_s = int(result.worker[batch]), float(result.finished_s[batch])
            task_sent_s = float(result.received_s[batch - outstanding]) if batch >= outstanding else 0
            begin_s = max(task_sent_s, free_s.get(worker, 0.0))
            free_s[worker] = finished_s
            cpu_s = float(costs.work[CPU, batch]) + (float(lag[CPU, worker]) if lag.shape[1] else 0.0)
            waited_s = float(costs.work[LATENCY, batch])
            waited_s += (finished_s - begin_s - cpu_s - waited_s) if costs.work[IO].any() else 0.0
            fetch_s = max(finished_s - begin_s, cpu_s + waited_s) if self.workers else cpu_s + waited_s
            one_sample_is_slow = fetch_s > 2 * float(np.median(costs.work.sum(axis=0)))
            fetches.append(
                FetchLine(
                    loader=0,
                    epoch=epoch,
                    batch=batch,
                    worker=worker,
                    at_s=first_s + begin_s,
                    fetch_s=fetch_s,
                    cpu_s=cpu_s,
                    queue_s=max(0.0, fetch_s - cpu_s - waited_s),
                    collate_s=self.collate * fetch_s,
                    samples=SAMPLES,
                    slowest_s=fetch_s / 2 if one_sample_is_slow else fetch_s / SAMPLES,
                    **self.fetch,
                )
            )
        return fetches

    def _system_lines(self, end_s, fetches):
        """Return one line per second."""
        cpu = sum(fetch.cpu_s for fetch in fetches) / end_s
        processes = (
            ProcessLoad(**{"cpu": self.step_cpu, **self.main}),
            *(ProcessLoad(loader=0, worker=worker, cpu=cpu / self.workers) for worker in range(self.workers)),
        )
        system = {name: value for name, value in self.system.items() if name != "machine"}
        return tuple(
            SystemLine(at_s=float(second), **{"others_cpu": self.competitors, "processes": processes, **system})
            for second in np.arange(0.0, end_s, 1.0)
        )

    def _stack_samples(self):
        if not (self.states or self.main_states):
            return ()
        worker = {"running": 100 - sum(self.states.values()), **self.states}
        main = {"running": 100 - sum(self.main_states.values()), **self.main_states}
        return (
            StackSamplesLine(loader=0, worker=0, at_s=1.0, samples=100, states=worker),
            StackSamplesLine(at_s=1.0, samples=100, states=main),
        )
