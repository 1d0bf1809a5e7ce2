"""`penstock sweep`: measures the user's training step at several batch sizes."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock.cli import console
from penstock.cli.arguments import AsJson, call_factory
from penstock.errors import SettingError
from penstock.plan.batch_size import change_batch_size
from penstock.plan.batch_size_sweep import SIZES
from penstock.plan.batch_size_sweep import sweep as sweep_sizes
from penstock.report.sweep import sweep_document, sweep_text

RETURNS = "a pair of functions: step(batch), and make_batch(size)"

RESUMED = "What was measured is lost: a second call measures again."


def sweep(
    factory: Annotated[
        str, typer.Argument(metavar="MODULE:FUNCTION", help="Returns (step, make_batch); called without arguments.")
    ],
    batch_sizes: Annotated[
        str, typer.Option(metavar="1,2,4,…", help="Sizes to measure, smallest first, until one does not fit.")
    ] = ",".join(map(str, SIZES)),
    device: Annotated[
        str | None,
        typer.Option(metavar="DEVICE", help="The step's device: cpu, cuda, cuda:1.  [default: the one the step uses]"),
    ] = None,
    duration: Annotated[float, typer.Option(min=0.01, metavar="SECONDS", help="Duration for each size.")] = 2.0,
    batch_size: Annotated[int | None, typer.Option(min=1, metavar="N", help="The present batch size.")] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(metavar="RATE", help="The present learning rate: it is scaled for the size that is found."),
    ] = None,
    dataset_samples: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Samples: a larger rate is reached over five epochs.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure samples per second and memory of your step at batch sizes.

    FUNCTION returns two functions: step(batch) does a whole training step
    (forward, backward, optimizer), and make_batch(size) makes a batch on
    the device that the step needs. A batch is made once and used again: no
    loading is measured. The speed is in samples/s, never in steps/s alone.
    The knee is the smallest size within 5% of the best.

        penstock sweep mypackage.train:make_step --batch-size 32

    With the present size and the learning rate (--learning-rate 0.1), it
    shows the scaled rate, or how many batches to accumulate instead.

    The module is imported from the working directory too, and its code
    runs: trust it. The model learns meanwhile, so use one for this only.

    Exit code: 0 measured, 2 wrong usage, or the step runs at no size.
    """
    if batch_size is None and (learning_rate is not None or dataset_samples is not None):
        raise SettingError("for which batch size is that?", advice="Give --batch-size, the present one")
    size_list = _parse_sizes(batch_sizes)
    step, make_batch = _functions(call_factory(factory, RETURNS))
    with console.timed("measuring", len(size_list) * duration) as describe:
        found = sweep_sizes(
            step,
            make_batch,
            size_list,
            device=device,
            seconds_each=duration,
            on_size=lambda size: describe(f"measuring batches of {size:,}"),
        )
    change = None
    if batch_size is not None:
        change = change_batch_size(batch_size, found.knee, learning_rate=learning_rate, dataset_size=dataset_samples)
    if as_json:
        console.print_json(sweep_document(found, change))
    else:
        console.out.print(sweep_text(found, change))


def _parse_sizes(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise SettingError(f"--batch-sizes: {text!r} are not whole numbers separated by commas", advice="Write 8,16,32")
    return [int(word) for word in words]


def _functions(made: Any) -> tuple[Any, Any]:
    if not isinstance(made, tuple) or len(made) != 2 or not all(callable(each) for each in made):
        raise SettingError(f"a {type(made).__name__} is not {RETURNS}", advice="Write: return step, make_batch")
    return made
