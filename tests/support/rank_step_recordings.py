"""Recordings of ranks that sum their gradients in `backward`, with the time of every phase of every step."""

from dataclasses import dataclass, field, replace

from penstock.recording.format import ProcessLoad, RunLine, StackSamplesLine, SystemLine
from tests.diagnose.evidence.test_evidence import recorded, step

STEPS = 60


@dataclass
class Rank:
    """The times of one rank's steps in seconds; a test changes those that matter.

    `forward_s` and `outside_s` may also be functions of the number of the step.
    """

    wait_s: float = 0.0
    forward_s: object = 0.010
    backward_s: float = 0.020
    """The rank's own work; waiting for the other ranks is added."""
    optimizer_s: float = 0.002
    outside_s: object = 0.001
    """Time outside all phases."""
    samples: int = 16
    system: dict = field(default_factory=dict)
    """Further fields of every system line."""
    main: dict = field(default_factory=dict)
    """Load of the rank's process in the system lines; empty: there are no system lines."""
    states: dict = field(default_factory=dict)
    """State → how many of 100 stack samples found the process in it; empty: there are no stack samples."""


def value_at(value, number):
    """Return the value for the step with this number; `value` is a number or a function of the step's number."""
    return value(number) if callable(value) else value


def trained(*ranks, on_device=False, together=True, profiled=lambda number: True):
    """Return a recording for each rank. A rank begins a step when it has finished the one before.

    on_device: the phases are timed by the device's clock, and the host only launches them.
    together: `backward` ends for all ranks when the last of them is done, as with an all-reduce.
    profiled: whether the step with a given number has phases.
    """
    free_s = [0.0] * len(ranks)
    steps = [[] for _ in ranks]
    for number in range(STEPS):
        start_s = [
            free + rank.wait_s + value_at(rank.forward_s, number) for free, rank in zip(free_s, ranks, strict=True)
        ]
        done_s = [start + rank.backward_s for start, rank in zip(start_s, ranks, strict=True)]
        for row, rank in enumerate(ranks):
            end_s = max(done_s) if together else done_s[row]
            outside_s = value_at(rank.outside_s, number)
            phases = {
                "forward": value_at(rank.forward_s, number),
                "backward": end_s - start_s[row],
                "optimizer": rank.optimizer_s,
            }
            whole_s = sum(phases.values()) + outside_s
            timed = {"device_phases": phases, "phases": _on_host(phases)} if on_device else {"phases": phases}
            timed = timed if profiled(number) else {}
            steps[row].append(step(number, rank.wait_s, whole_s, at_s=free_s[row], samples=rank.samples, **timed))
            free_s[row] = end_s + rank.optimizer_s + outside_s
    recordings = [
        recorded(steps[row], system=_system_lines(rank, free_s[row]), stack_samples=_stack_samples(rank))
        for row, rank in enumerate(ranks)
    ]
    return [
        replace(recording, run=RunLine(rank=rank, world_size=len(ranks))) for rank, recording in enumerate(recordings)
    ]


def _on_host(phases):
    """Return the phases on the host, which launches all work quickly and waits for the device at the end."""
    launches = dict.fromkeys(phases, 0.001)
    return {**launches, "sync": sum(phases.values()) - sum(launches.values())}


def _system_lines(rank, end_s):
    if not rank.main:
        return ()
    processes = (ProcessLoad(**rank.main),)
    return tuple(SystemLine(at_s=0.5 + second, processes=processes, **rank.system) for second in range(int(end_s)))


def _stack_samples(rank):
    return (StackSamplesLine(at_s=1.0, samples=100, states=rank.states),) if rank.states else ()
