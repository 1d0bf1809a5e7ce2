"""Runs one setting of a script: under `penstock run`, alone, and with each alternative; then diagnoses and plans."""

from __future__ import annotations

import array
import importlib.util
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.faults_independent.means import SlowMount, Surroundings
from benchmarks.faults_independent.run import busy_seconds, children_seconds
from benchmarks.field import synthetic
from benchmarks.field.manifest import DATA, Script, Setting

STEP_CLOCK = Path(__file__).parent / "step_clock"
STEADY_FROM = 0.4
"""The rate counts steps after this share of the time, when batches prefetched during slow first steps are used up."""
LONGEST_START_S = 90
"""Seconds that a script may take before its first step."""
SHUTDOWN_S = 40
MIN_STEPS = 16
PROPOSED = "proposed"
"""The run with the plan's settings of the DataLoader; it states no cause."""
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "MPLBACKEND": "agg"}


@dataclass(frozen=True)
class Result:
    """The measurements of a setting, and the answers of the diagnosis and the plan."""

    name: str
    rate: float
    """Steps per second while watched."""
    watched_cost: float | None
    """Seconds per step while watched over those alone, minus one; None if it was not run alone."""
    other_cores: float
    """Cores that other processes of the machine used during the watched run."""
    gains: dict[str, float]
    """Measured gain of each alternative over the run alone, or over the watched one."""
    verdict: str
    sentence: str
    findings: tuple[str, ...]
    gain: float | None
    low: float | None
    high: float | None
    planned: tuple[str, ...]
    """Changes of the plan, as `name=value`."""


def missing(setting: Setting, scripts: Path) -> str | None:
    """Return why a setting cannot run here, or None."""
    if not (scripts / setting.script.folder / setting.script.path).exists():
        return f"{setting.script.repository} is not in {scripts}"
    if absent := [name for name in setting.script.needs if importlib.util.find_spec(name) is None]:
        return f"not installed: {', '.join(absent)}"
    if setting.gpu and not os.path.exists("/dev/nvidiactl") and not os.path.exists("/dev/nvidia0"):
        return "it needs a GPU"
    return SlowMount().missing() if setting.slow_open_ms else None


class Runner:
    """Runs settings in one scratch folder."""

    def __init__(self, scripts: Path, folder: Path, seconds: float, alone: bool) -> None:
        self.scripts, self.folder, self.seconds, self.alone = scripts, folder, seconds, alone
        self.other_cores = 0.0
        for name in ("recordings", "work", "out", "data"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def run(self, setting: Setting) -> Result:
        recording = self.folder / "recordings" / f"{setting.full_name.replace('/', '-')}.jsonl"
        recording.unlink(missing_ok=True)
        watched = self.rate(setting, watch=recording)
        other_cores = self.other_cores
        alone = self.rate(setting) if self.alone else None
        base = alone or watched
        gains = {}
        for other in setting.alternatives:
            args, data = other.args if other.args is not None else setting.args, other.data or setting.data
            gains[other.name] = self.rate(setting, args=args, data=data, cached=other.cached) / base - 1
        found, plan = _json("diagnose", recording), _json("plan", recording)
        if plan.get("changes") and (loader := plan.get("dataloader")):
            gains[PROPOSED] = self.rate(setting, loader=loader) / base - 1
        first = found["findings"][0] if found["findings"] else {}
        return Result(
            name=setting.full_name,
            rate=watched,
            watched_cost=alone / watched - 1 if alone else None,
            other_cores=other_cores,
            gains=gains,
            verdict=found["verdict"],
            sentence=found["sentence"],
            findings=tuple(finding["rule"] for finding in found["findings"]),
            gain=first.get("gain"),
            low=first.get("gain_low"),
            high=first.get("gain_high"),
            planned=tuple(f"{change['name']}={change.get('then')}" for change in plan.get("changes", [])),
        )

    def rate(
        self,
        setting: Setting,
        args: str | None = None,
        data: str | None = None,
        cached: bool = False,
        loader: Mapping[str, Any] | None = None,
        watch: Path | None = None,
    ) -> float:
        """Run a setting once and return its steady steps per second, by the times of its optimizer's steps."""
        data = setting.data if data is None else data
        place = synthetic.ready(data, DATA[data], self.folder / "data") if data else self.folder
        root = self._work_tree(setting.script, place)
        times = self.folder / "steps.f64"
        times.unlink(missing_ok=True)
        around = Surroundings(plain=place, data=place)
        with ExitStack() as stack:
            if setting.slow_open_ms:
                stack.enter_context(SlowMount(open_ms=setting.slow_open_ms).around(around))
            words = (setting.args if args is None else args).format(data=around.data, out=self.folder / "out")
            command = [str(_as_script(root / setting.script.path, place)), *shlex.split(words)]
            if watch:
                penstock = ["-m", "penstock", "run", "--no-live", "--no-diagnose", "--no-recheck-storage"]
                command = [*penstock, "-o", str(watch), *command]
            path = [str(STEP_CLOCK), str(root / setting.script.pythonpath), os.environ.get("PYTHONPATH", "")]
            environment = dict(os.environ, **OFFLINE, PYTHONPATH=os.pathsep.join(filter(None, path)))
            environment |= {"FIELD_STEPS": str(times), "FIELD_SECONDS": str(self.seconds)}
            if not setting.gpu:
                environment["OMP_NUM_THREADS"] = "1"  # as torchrun sets it; the workers need the other cores
            if cached:
                environment["FIELD_CACHED"] = "1"
            if loader:
                environment["FIELD_LOADER"] = json.dumps(loader)
            printed = self._execute([sys.executable, *command], root / setting.script.cwd, environment, times)
        return _steady_rate(times, f"{shlex.join(command)}\n{printed[-1500:]}")

    def _execute(self, command: list[str], cwd: Path, environment: dict[str, str], times: Path) -> str:
        log = self.folder / "printed.txt"
        with open(log, "w") as out:
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env=environment,
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            start, busy, own = time.monotonic(), busy_seconds(), children_seconds()
            end = start + LONGEST_START_S
            while process.poll() is None and time.monotonic() < end and not times.exists():
                time.sleep(0.05)
            try:
                process.wait(self.seconds + SHUTDOWN_S if times.exists() else 1)
            except subprocess.TimeoutExpired:
                pass
            finally:  # also if the bench itself is interrupted
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        self.other_cores = (busy_seconds() - busy - (children_seconds() - own)) / (time.monotonic() - start)
        return log.read_text(errors="replace")

    def _work_tree(self, script: Script, place: Path) -> Path:
        """Copy a script's repository, so that the original stays as it is; add the data where scripts expect it."""
        root = self.folder / "work" / script.folder
        if not root.exists():
            shutil.copytree(self.scripts / script.folder, root, symlinks=True)
        expected = ("data/synth", "data/wikitext-2.txt", "accuracy")
        for link in (root / script.cwd / name for name in expected):
            source = place if link.name == "synth" else place / link.name
            if source.exists():
                link.parent.mkdir(parents=True, exist_ok=True)
                link.unlink(missing_ok=True)
                link.symlink_to(source)
        return root


def _as_script(path: Path, place: Path) -> Path:
    """Return a script; of a notebook, its code cells, with its parameters replaced as papermill does."""
    if path.suffix != ".ipynb":
        return path
    shards = sorted(place.glob("train-*.tar"))
    lines = []
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            source = "".join(cell["source"])
            lines += [line for line in source.splitlines() if not line.lstrip().startswith(("%", "!"))]
            if source.startswith("# parameters"):
                lines.append(f"training_urls = '{place}/train-{{000000..{len(shards) - 1:06d}}}.tar'")
    script = path.with_suffix(".py")
    script.write_text("\n".join(lines) + "\n")
    (path.parent / "_cache").mkdir(exist_ok=True)
    return script


def _steady_rate(times: Path, about: str) -> float:
    steps = array.array("d")
    if times.exists():
        steps.frombytes(times.read_bytes())
    if len(steps) < MIN_STEPS:
        raise RuntimeError(f"only {len(steps)} steps: {about}")
    since = steps[0] + STEADY_FROM * (steps[-1] - steps[0])
    first = next(i for i, at in enumerate(steps) if at >= since)
    return (len(steps) - 1 - first) / (steps[-1] - steps[first])


def _json(command: str, recording: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", command, "--json", str(recording)], capture_output=True, text=True
    )
    if not done.stdout.strip():
        if command == "plan":
            return {}
        return {"verdict": "unreadable", "sentence": done.stderr.strip()[-300:], "findings": []}
    found: dict[str, Any] = json.loads(done.stdout)
    return found
