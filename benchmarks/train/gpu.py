"""`python -m benchmarks.train.gpu`: the helpers never make the loop wait for the GPU, and what that saves.

First a training with all helpers under torch's own alarm for synchronisations, in each precision; then every helper
beside the habit that it replaces. Needs a CUDA device.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from typing import Literal

import torch

from benchmarks.document import Finding, as_json, lines_of, show, write
from benchmarks.train.gpu_helpers import measure
from benchmarks.train.gpu_models import STEPS, WARM_UP, convolutions, loss_of, pictures, pictures_on_gpu
from penstock.train import EvaluationBudget, Every, GradClip, Metrics, Prefetcher, Throttle, accumulate, precision


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the lines as JSON")
    parser.add_argument("--write", action="store_true", help="write the section into docs/benchmarks.md")
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("there is no CUDA device here")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", file=sys.stderr)
    quiet = [_alarmed(kind) for kind in ("fp32", "bf16", "fp16")]
    found: dict[str, list[Finding]] = {"train-gpu": list(measure())}
    if asked.json:
        print(as_json(found))
    else:
        show(found)
    if asked.write:
        write(found)
    sys.exit(0 if all(quiet) and all(line.reached for line in lines_of(found)) else 1)


def _alarmed(kind: Literal["fp32", "bf16", "fp16"]) -> bool:
    """A training in which any synchronisation is an error; the numbers are read after it."""
    model = convolutions()
    amp = precision(model, kind, watch=10**9)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    clip = GradClip(10.0, adaptive=0.9, every=5, window=30)
    metrics, every, throttle, budget = Metrics(), Every(10), Throttle(0.01), EvaluationBudget(first=10**9)
    batches = Prefetcher(pictures(STEPS, pinned=True), "cuda")
    try:
        for number, (batch, micro) in enumerate(accumulate(batches, 2, model)):
            if number == WARM_UP:  # kernels are chosen and loaded by now
                torch.cuda.set_sync_debug_mode("error")
            with micro:
                with amp.autocast():
                    loss = loss_of(model, batch)
                amp.backward(loss)
            if micro.last:
                amp.step(optimizer, clip)
                optimizer.zero_grad(set_to_none=True)
            metrics.add(loss=loss)
            every(), throttle(), budget.due()
    except RuntimeError:
        print(f"{kind}: the loop had to wait for the GPU\n{traceback.format_exc()}", file=sys.stderr)
        return False
    finally:
        torch.cuda.set_sync_debug_mode("default")
    norms = ", ".join(f"{norm:.3g}" for _, norm in clip.recorded)
    print(f"{kind}: no synchronisation in {STEPS - WARM_UP} batches; {metrics}; norms {norms}; skipped {clip.skipped}")
    data = pictures_on_gpu()
    print(f"{kind}: tensor cores {amp.tensor_cores}; {amp.look(lambda: loss_of(model, data))}")
    return True


if __name__ == "__main__":
    main()
