"""`python -m benchmarks.train.gpu`: check that no helper makes the loop wait for the GPU, and measure what that saves.

First a training with all helpers runs in each precision with torch's check for synchronisations set to raise an error.
Then each helper is compared with the usual code that it replaces. Needs a CUDA device.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from typing import Literal

import torch

from benchmarks.document import Finding, as_json, lines_of, show, write
from benchmarks.train.gpu_helpers import measure
from benchmarks.train.gpu_models import STEPS, WARM_UP, convolutions, image_batch_on_gpu, image_batches, loss_of
from penstock.train import EvaluationBudget, Every, GradClip, Metrics, Prefetcher, Throttle, accumulate, precision


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the lines as JSON")
    parser.add_argument("--write", action="store_true", help="write the section into docs/benchmarks.md")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this machine has no CUDA device")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", file=sys.stderr)
    without_waiting = [_train_without_waiting(kind) for kind in ("fp32", "bf16", "fp16")]
    found: dict[str, list[Finding]] = {"train-gpu": list(measure())}
    if options.json:
        print(as_json(found))
    else:
        show(found)
    if options.write:
        write(found)
    sys.exit(0 if all(without_waiting) and all(line.reached for line in lines_of(found)) else 1)


def _train_without_waiting(kind: Literal["fp32", "bf16", "fp16"]) -> bool:
    """Train with all helpers; return False if the loop waited for the GPU. Values are only read after the training."""
    model = convolutions()
    amp = precision(model, kind, watch=10**9)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    clip = GradClip(10.0, adaptive=0.9, every=5, window=30)
    metrics, every, throttle, budget = Metrics(), Every(10), Throttle(0.01), EvaluationBudget(first=10**9)
    batches = Prefetcher(image_batches(STEPS, pinned=True), "cuda")
    try:
        for number, (batch, micro) in enumerate(accumulate(batches, 2, model)):
            if number == WARM_UP:  # kernels have been chosen and loaded, which may synchronise
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
    data = image_batch_on_gpu()
    print(f"{kind}: tensor cores {amp.tensor_cores}; {amp.inspect(lambda: loss_of(model, data))}")
    return True


if __name__ == "__main__":
    main()
