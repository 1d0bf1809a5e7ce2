"""Recordings of ranks that sum their gradients in `backward`, as a training of theirs would have left them."""

from dataclasses import dataclass, field, replace

from penstock.recording.format import ProcessLoad, RunLine, StackSamplesLine, SystemLine
from tests.diagnose.evidence.test_evidence import recorded, step

STEPS = 60


@dataclass
class Rank:
    """Seconds of a step: change what matters for the test."""

    wait_s: float = 0.0
    forward_s: object = 0.010
    backward_s: float = 0.020
    """Of its own: the others are waited for on top of it."""
    optimizer_s: float = 0.002
    rest_s: object = 0.001
    samples: int = 16
    system: dict = field(default_factory=dict)
    main: dict = field(default_factory=dict)
    """Of its process in the system's looks; nobody looked where it is empty."""
    states: dict = field(default_factory=dict)


def at(value, number):
    return value(number) if callable(value) else value


def trained(*ranks, on_device=False, together=True, profiled=lambda number: True):
    """A recording for each. A step begins for a rank when it is done with the last one."""
    free_s = [0.0] * len(ranks)
    steps = [[] for _ in ranks]
    for number in range(STEPS):
        begun_s = [free + rank.wait_s + at(rank.forward_s, number) for free, rank in zip(free_s, ranks, strict=True)]
        done_s = [begun + rank.backward_s for begun, rank in zip(begun_s, ranks, strict=True)]
        for row, rank in enumerate(ranks):
            over_s = max(done_s) if together else done_s[row]
            rest_s = at(rank.rest_s, number)
            phases = {
                "forward": at(rank.forward_s, number),
                "backward": over_s - begun_s[row],
                "optimizer": rank.optimizer_s,
            }
            whole_s = sum(phases.values()) + rest_s
            clocks = {"device_phases": phases, "phases": _handed_out(phases)} if on_device else {"phases": phases}
            more = clocks if profiled(number) else {}
            steps[row].append(step(number, rank.wait_s, whole_s, at_s=free_s[row], samples=rank.samples, **more))
            free_s[row] = over_s + rank.optimizer_s + rest_s
    made = [
        recorded(steps[row], system=_looks(rank, free_s[row]), stack_samples=_where(rank))
        for row, rank in enumerate(ranks)
    ]
    return [replace(one, run=RunLine(rank=rank, world_size=len(made))) for rank, one in enumerate(made)]


def _handed_out(phases):
    """The host is done with each long before the device is, and waits for all of it at the end."""
    short = dict.fromkeys(phases, 0.001)
    return {**short, "sync": sum(phases.values()) - sum(short.values())}


def _looks(rank, end_s):
    if not rank.main:
        return ()
    processes = (ProcessLoad(**rank.main),)
    return tuple(SystemLine(at_s=0.5 + second, processes=processes, **rank.system) for second in range(int(end_s)))


def _where(rank):
    return (StackSamplesLine(at_s=1.0, samples=100, states=rank.states),) if rank.states else ()
