"""Accounts for bad samples: lists them in a file, and raises an error if too many are bad."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.errors import PenstockError, SampleError
from penstock.options import ErrorOptions

MIN_SAMPLES_FOR_RATE = 100
"""Samples delivered or bad before the share of bad ones is judged."""


def list_bad_samples(errors: Sequence[PenstockError], options: ErrorOptions) -> None:
    """Append a line for each bad sample to the file that the user has named, if there is one."""
    if options.bad_samples_path is not None and errors:
        with open(options.bad_samples_path, "ab") as file:
            for error in errors:
                file.write(msgspec.json.encode({**error.where(), "reason": error.reason}) + b"\n")


def check_bad_fraction(bad: int, total: int, example: PenstockError, options: ErrorOptions) -> None:
    """Raise an error if more of the samples are bad than the options allow; `example` is one of them."""
    if total >= MIN_SAMPLES_FOR_RATE and bad > options.max_bad_fraction * total:
        raise SampleError(
            f"{bad} of {total} samples are bad, more than the {options.max_bad_fraction:.1%} allowed; "
            f"the last: {example.reason}",
            shard=example.shard,
            member=example.member,
            offset=example.offset,
            stage="deliver",
            advice="Run 'penstock shards check --decode', or raise max_bad_fraction",
        )
