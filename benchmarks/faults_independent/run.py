"""Runs one case: the training without the fault, the training with it under `penstock run`, and `penstock diagnose`."""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.faults_independent import data
from benchmarks.faults_independent.cases import SIZES, Case, Side, Size
from benchmarks.faults_independent.means import Surroundings

SCRIPTS = Path(__file__).parent / "scripts"
RUN_LIMIT_S = 150
"""A run takes 15 s at most on a quiet machine; one that takes ten times as long hangs."""
RATE = re.compile(r"([\d.]+) samples/s")
JOIN_GROUPS = 'for group in $GROUPS_TO_JOIN; do echo $$ > "$group/cgroup.procs"; done; exec "$@"'


@dataclass(frozen=True)
class Ran:
    """One training."""

    rate: float
    """Samples per second, as the script prints it."""
    seconds: float
    other_cores: float
    """Cores that all other processes of the machine used meanwhile, those of the fault among them."""


@dataclass(frozen=True)
class Measured:
    """The measurements of a case."""

    name: str
    size: Size
    rates: tuple[float, float]
    """Samples per second with the fault and without it."""
    other_cores: float
    """While the recorded run was running."""


@dataclass(frozen=True)
class Result(Measured):
    """The answer of the diagnosis, with the measurements."""

    accepted: tuple[str, ...]
    measured: float
    """Gain of removing the fault: 0.5 is half as fast again."""
    verdict: str
    """`healthy`, `findings` or `undetermined`."""
    findings: tuple[str, ...]
    gain: float | None
    """The gain that the first finding expects, and the ends of its interval."""
    low: float | None
    high: float | None
    sentence: str


def missing(case: Case) -> str | None:
    """Return why a case cannot run on this machine, or None."""
    reasons = (means.missing() for side in (case.planted, case.removed) for means in side.means)
    return next((reason for reason in reasons if reason), None)


def measure(case: Case, size: Size, folder: Path, rounds: int) -> Measured:
    """Run both sides in turns; keep the recording of the first round."""
    with_fault, without = [], []
    recording = folder / "recordings" / f"{case.name}-{size}.jsonl"
    recording.parent.mkdir(exist_ok=True)
    for number in range(rounds):
        aside = folder / "recordings" / "other.jsonl"
        without.append(train(case, case.removed, size, folder, aside))
        with_fault.append(train(case, case.planted, size, folder, aside if number else recording))
    rates = (median(ran.rate for ran in with_fault), median(ran.rate for ran in without))
    return Measured(case.name, size, rates, with_fault[0].other_cores)


def judge(case: Case, measured: Measured, folder: Path) -> Result:
    """Diagnose the recording of a case."""
    recording = folder / "recordings" / f"{case.name}-{measured.size}.jsonl"
    found = diagnose(recording)
    first = found["findings"][0] if found["findings"] else {}
    return Result(
        **asdict(measured),
        accepted=case.accepted,
        measured=measured.rates[1] / measured.rates[0] - 1,
        verdict=found["verdict"],
        findings=tuple(finding["rule"] for finding in found["findings"]),
        gain=first.get("gain"),
        low=first.get("gain_low"),
        high=first.get("gain_high"),
        sentence=found["sentence"],
    )


def train(case: Case, side: Side, size: Size, folder: Path, recording: Path) -> Ran:
    """Run the script of a case once under `penstock run`."""
    index = SIZES.index(size)
    place = data.ready(case.made[index][1], case.made[index][0], folder) if case.made else folder
    out = folder / "out"
    out.mkdir(exist_ok=True)
    around = Surroundings(plain=place, data=place)
    with ExitStack() as stack:
        for means in side.means:
            stack.enter_context(means.around(around))
        words = f"{case.common[index]} {side.args}".format(data=around.data, plain=place, host=around.host, out=out)
        script = [str(SCRIPTS / f"{case.script}.py"), *shlex.split(words)]
        if case.ranks > 1:
            launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(case.ranks)]
            script = [*launcher, *script]
        watched = [sys.executable, "-m", "penstock", "run", "--no-live", "--no-diagnose", "-o", str(recording), *script]
        return _run(watched, around)


def _run(command: list[str], around: Surroundings) -> Ran:
    environment = dict(os.environ, GROUPS_TO_JOIN=" ".join(map(str, around.groups)))
    busy, own, start = busy_seconds(), children_seconds(), time.monotonic()
    process = subprocess.Popen(
        ["/bin/sh", "-c", JOIN_GROUPS, "sh", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    around.pid = process.pid
    try:
        printed, errors = process.communicate(timeout=RUN_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.terminate()
        printed, errors = process.communicate()
        errors = f"did not end within {RUN_LIMIT_S} s\n{errors}"
    seconds = time.monotonic() - start
    rates = RATE.findall(printed)
    if process.returncode or not rates:
        raise RuntimeError(f"exit code {process.returncode}: {shlex.join(command)}\n{errors[-2000:]}")
    others = (busy_seconds() - busy - (children_seconds() - own)) / seconds
    return Ran(float(rates[-1]), seconds, max(0.0, others))


def diagnose(recording: Path) -> dict[str, Any]:
    """Return the JSON of `penstock diagnose`."""
    command = [sys.executable, "-m", "penstock", "diagnose", "--json", str(recording)]
    done = subprocess.run(command, capture_output=True, text=True)
    if not done.stdout.strip():
        raise RuntimeError(f"no diagnosis of {recording}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def busy_seconds() -> float:
    times = psutil.cpu_times()
    return times.user + times.nice + times.system


def children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
