"""`penstock sweep`: batch sizes tried on the user's own step."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock.cli import console
from penstock.cli.arguments import AsJson, made_by
from penstock.errors import SettingError
from penstock.plan.batch_size import change_batch_size
from penstock.plan.batch_size_sweep import SIZES
from penstock.plan.batch_size_sweep import sweep as try_sizes
from penstock.report.sweep import sweep_document, sweep_text

RETURNS = "a pair of functions: step(batch), and make_batch(size)"


def sweep(
    factory: Annotated[
        str, typer.Argument(metavar="MODULE:FUNCTION", help="Returns (step, make_batch); called without arguments.")
    ],
    sizes: Annotated[
        str, typer.Option(metavar="1,2,4,…", help="To try, smallest first, until one does not fit.")
    ] = ",".join(map(str, SIZES)),
    device: Annotated[
        str | None, typer.Option(help="Where the step computes: cpu, cuda, cuda:1.  [default: as the step does]")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.01, help="For each size.")] = 2.0,
    batch_size: Annotated[int | None, typer.Option(min=1, help="That you train with now.")] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="That goes with it: scaled for the size that is found.")
    ] = None,
    dataset_size: Annotated[
        int | None, typer.Option(min=1, help="Samples: a larger rate is reached over five epochs.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Which batch size? Samples per second and memory of your step at each.

    FUNCTION returns two functions: step(batch) does all of a training step
    (forward, backward, optimizer), and make_batch(size) makes a batch where
    the step wants it. A batch is made once and used again: no loading is
    measured. Speed is told in samples/s, never in steps/s alone. The knee is
    the smallest size within 5% of the best.

        penstock sweep mypackage.train:make_step --batch-size 32

    With the size and the learning rate of now (--learning-rate 0.1), it says
    what becomes of the rate, or how many batches to accumulate for the same.

    The module is looked for in the working directory too, and is run: trust
    it; the model learns meanwhile, so give it one that may.

    Exit code: 0 measured, 2 wrong usage, or the step runs at no size.
    """
    if batch_size is None and (learning_rate is not None or dataset_size is not None):
        raise SettingError("for which batch size is that?", advice="Give --batch-size, the one of now")
    wanted = _numbers(sizes)
    step, make_batch = _pair(made_by(factory, RETURNS))
    with console.notices.status("trying batch sizes …"):
        found = try_sizes(step, make_batch, wanted, device=device, seconds_each=seconds)
    change = None
    if batch_size is not None:
        change = change_batch_size(batch_size, found.knee, learning_rate=learning_rate, dataset_size=dataset_size)
    if as_json:
        console.print_json(sweep_document(found, change))
    else:
        console.out.print(sweep_text(found, change))


def _numbers(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise SettingError(f"sizes {text!r} are not whole numbers with commas between", advice="Write 8,16,32")
    return [int(word) for word in words]


def _pair(made: Any) -> tuple[Any, Any]:
    if not isinstance(made, tuple) or len(made) != 2 or not all(callable(each) for each in made):
        raise SettingError(f"a {type(made).__name__} is not {RETURNS}", advice="Write: return step, make_batch")
    return made
