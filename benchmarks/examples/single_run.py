"""One timed run of an example, in a process of its own; the last line it prints is what came of it.

`python -m benchmarks.examples.single_run distill --data FOLDER --toy --before loader copies --set width=16`
"""

from __future__ import annotations

import argparse
import gc
import importlib
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
import yaml
from examples.common.settings import Settings, read_settings

from benchmarks.examples.meter import Limits, Meter, Pace, samples_of

EXAMPLES = ("distill", "reid", "segment")
COMPARED = 320
"""Samples, or a few more: losses are compared step by step as far as that."""


class Outcome(msgspec.Struct, frozen=True):
    """Of a run."""

    device: str
    pace: Pace
    losses: list[float] = []
    """Step by step, if they were asked for."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("example", choices=EXAMPLES)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--before", nargs="*", default=[], metavar="HABIT")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="other settings than the config's")
    parser.add_argument("--losses", action="store_true", help="first the loss of every step, nothing shuffled")
    parser.add_argument("--warm-up", type=int, default=10)
    parser.add_argument("--warm-up-s", type=float, default=4.0)
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=10.0)
    asked = parser.parse_args()
    warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than cores: a habit
    if not torch.cuda.is_available():
        torch.set_num_threads(1)  # threads that wait for each other among busy workers make a step many times longer
    changed = yaml.safe_load("\n".join(each.replace("=", ": ", 1) for each in asked.set)) or {}
    example = importlib.import_module(f"examples.{asked.example}.train")
    found = losses(example, asked.data, asked.before, toy=asked.toy, changed=changed) if asked.losses else []
    gc.collect()  # its loader ends here
    limits = Limits(asked.warm_up, asked.iterations, asked.seconds, asked.warm_up_s)
    pace = timed(example, asked.data, asked.before, limits, toy=asked.toy, changed=changed)
    print(msgspec.json.encode(Outcome(_device(), pace, found)).decode(), flush=True)


def timed(example: Any, data: Path, habits: list[str], limits: Limits, *, toy: bool, changed: dict[str, Any]) -> Pace:
    settings = _settings(example, toy, {**changed, "epochs": 1})
    meter = Meter(example.make_loader(settings, example.prepare(settings, data), habits), limits)
    example.train(meter, settings, habits)
    return meter.pace()


def losses(example: Any, data: Path, habits: list[str], *, toy: bool, changed: dict[str, Any]) -> list[float]:
    """Batches come in the order of the shards, or as one sampler has them: no two samplers draw the same."""
    in_order = {"shuffle": False} if "shuffle" in example.Config.__struct_fields__ else {}
    settings = _settings(example, toy, {**changed, **in_order, "epochs": 1, "log_every": 1})
    same_samples = [habit for habit in habits if habit != "sampler"]
    loader = example.make_loader(settings, example.prepare(settings, data), same_samples)
    printed = example.train(_first(loader, COMPARED), settings, same_samples)
    return [each["loss"] for each in printed]


def _settings(example: Any, toy: bool, changed: dict[str, Any]) -> Settings:
    return read_settings(example.Config, example.CONFIG, toy=toy, changed=changed)


def _first(loader: Iterable[Any], samples: int) -> Iterator[Any]:
    taken = 0
    for batch in loader:
        yield batch
        taken += samples_of(batch)
        if taken >= samples:
            return


def _device() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU, one thread for the step"


if __name__ == "__main__":
    main()
