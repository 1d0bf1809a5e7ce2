"""One timed run of an example, in a process of its own, which prints the outcome as JSON in its last line.

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
COMPARED_SAMPLES = 320
"""Samples, rounded up to whole batches, over which losses are compared step by step."""


class Outcome(msgspec.Struct, frozen=True):
    """The result of a run."""

    device: str
    pace: Pace
    losses: list[float] = []
    """Loss of each step, if requested with --losses."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("example", choices=EXAMPLES)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--before", nargs="*", default=[], metavar="HABIT")
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings that replace those of the config"
    )
    parser.add_argument("--losses", action="store_true", help="also report the loss of every step, without shuffling")
    parser.add_argument("--warm-up", type=int, default=10)
    parser.add_argument("--warm-up-s", type=float, default=4.0)
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="This DataLoader will create")  # a habit: more workers than cores
    if not torch.cuda.is_available():
        torch.set_num_threads(1)  # several threads among busy workers make a step many times longer
    changed = yaml.safe_load("\n".join(each.replace("=", ": ", 1) for each in options.set)) or {}
    example = importlib.import_module(f"examples.{options.example}.train")
    step_losses = (
        losses(example, options.data, options.before, toy=options.toy, changed=changed) if options.losses else []
    )
    gc.collect()  # closes the loader
    limits = Limits(options.warm_up, options.iterations, options.seconds, options.warm_up_s)
    pace = timed(example, options.data, options.before, limits, toy=options.toy, changed=changed)
    print(msgspec.json.encode(Outcome(_device(), pace, step_losses)).decode(), flush=True)


def timed(example: Any, data: Path, habits: list[str], limits: Limits, *, toy: bool, changed: dict[str, Any]) -> Pace:
    """Train within the limits and return the speed; `changed` are settings that replace those of the config."""
    settings = _settings(example, toy, {**changed, "epochs": 1})
    meter = Meter(example.make_loader(settings, example.prepare(settings, data), habits), limits)
    example.train(meter, settings, habits)
    return meter.pace()


def losses(example: Any, data: Path, habits: list[str], *, toy: bool, changed: dict[str, Any]) -> list[float]:
    """Train on the first samples and return the loss of each step.

    Batches come in the order of the shards, or in that of the default sampler, because no two samplers draw the same
    samples. So losses with and without habits are of the same samples.
    """
    in_order = {"shuffle": False} if "shuffle" in example.Config.__struct_fields__ else {}
    settings = _settings(example, toy, {**changed, **in_order, "epochs": 1, "log_every": 1})
    same_samples = [habit for habit in habits if habit != "sampler"]
    loader = example.make_loader(settings, example.prepare(settings, data), same_samples)
    printed = example.train(_first(loader, COMPARED_SAMPLES), settings, same_samples)
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
