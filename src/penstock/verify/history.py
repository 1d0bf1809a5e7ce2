"""Earlier verifications, from which the model's error is computed: one line each in a file of the user's cache."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from penstock.core.plan import Plan
from penstock.core.text import redact_secrets
from penstock.core.user_cache import cache_dir
from penstock.verify.judge import Judgement
from penstock.verify.measures import Answer

VERSION = 1
MAX_READ_BYTES = 8 << 20
"""Bytes read from the end of the file: some ten thousand verifications."""
VERIFICATIONS_MIN = 5
"""Predictions from which on their errors say how good the next one will be."""
NORMAL_MEDIAN = 0.6745
"""Median of the absolute value of a standard normal variable."""
GOOD_ERROR = 0.15
"""Error of the model below which a prediction counts as good."""


class VerificationEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One verification, as a line of the file."""

    version: int = VERSION
    at_unix_s: float
    plan: str
    """Digest of the plan's machine, dataset and settings."""
    dataloader: dict[str, Any] = {}
    command: tuple[str, ...] = ()
    answer: Answer
    before_samples_s: float
    after_samples_s: float
    gain: float
    low: float | None = None
    high: float | None = None
    predicted_gain: float | None = None
    cold: bool = False

    @property
    def error(self) -> float | None:
        """Error of the predicted rate, as a share of the measured one."""
        if self.predicted_gain is None or self.gain <= -1:
            return None
        return (1 + self.predicted_gain) / (1 + self.gain) - 1


@dataclass(frozen=True, slots=True)
class VerificationHistory:
    """All verifications in the file, oldest first."""

    entries: tuple[VerificationEntry, ...]
    skipped: int = 0
    """Number of lines that cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelError:
    """The error of the predictions in a history."""

    count: int
    """Number of verifications with a prediction."""
    median: float
    """Median of the absolute errors."""
    within: float
    """Share of the errors below GOOD_ERROR."""


def make_entry(plan: Plan, judgement: Judgement, command: Sequence[str], *, cold: bool) -> VerificationEntry:
    """Return an entry with the current time."""
    return VerificationEntry(
        at_unix_s=time.time(),
        plan=plan_digest(plan),
        dataloader=dict(plan.dataloader),
        command=tuple(map(redact_secrets, command)),
        answer=judgement.answer,
        before_samples_s=judgement.before_samples_s,
        after_samples_s=judgement.after_samples_s,
        gain=judgement.gain,
        low=judgement.low,
        high=judgement.high,
        predicted_gain=judgement.predicted_gain,
        cold=cold,
    )


def plan_digest(plan: Plan) -> str:
    """Return a digest that is the same for the same settings on the same machine and dataset."""
    identity: Mapping[str, Any] = {"fingerprint": plan.fingerprint, "dataloader": plan.dataloader}
    return hashlib.sha256(msgspec.json.encode(identity, enc_hook=str, order="deterministic")).hexdigest()[:16]


def append_entry(entry: VerificationEntry) -> Path:
    """Append an entry in one write, so that two verifications at a time do not mix; return the file."""
    path = _file()
    text = msgspec.json.encode(entry, enc_hook=str) + b"\n"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o600)
    try:
        size = os.fstat(fd).st_size
        if size and _byte_at(fd, size - 1) != b"\n":  # the last line of another process was cut short
            text = b"\n" + text
        os.write(fd, text)
    finally:
        os.close(fd)
    return path


def read_history() -> VerificationHistory:
    """Read the history; of a very long file its end."""
    path = _file()
    if not path.exists():
        return VerificationHistory(())
    with open(path, "rb") as file:
        start = max(0, path.stat().st_size - MAX_READ_BYTES)
        file.seek(start)
        lines = file.read(MAX_READ_BYTES).splitlines()[1 if start else 0 :]
    decoder = msgspec.json.Decoder(VerificationEntry)
    entries, skipped = [], 0
    for line in lines:
        try:
            entry = decoder.decode(line)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            skipped += bool(line.strip())
        else:
            entries.append(entry)
    return VerificationHistory(tuple(entries), skipped)


def model_error(entries: Sequence[VerificationEntry]) -> ModelError | None:
    """Return the error over all verifications with a prediction; None if there are none."""
    errors = np.abs([entry.error for entry in entries if entry.error is not None])
    if not len(errors):
        return None
    within = float((errors <= GOOD_ERROR).mean())
    return ModelError(count=len(errors), median=float(np.median(errors)), within=within)


def prediction_error() -> float | None:
    """Return the standard deviation of predicted over measured rate on this machine, as a logarithm.

    None with fewer than VERIFICATIONS_MIN predictions, whose spread is not known. A few large errors do not count more
    than others: it is the median error, as a normal distribution has it.
    """
    errors = np.abs([entry.error for entry in read_history().entries if entry.error is not None and entry.error > -1])
    if len(errors) < VERIFICATIONS_MIN:
        return None
    return float(np.log1p(np.median(errors))) / NORMAL_MEDIAN


def _byte_at(fd: int, offset: int) -> bytes:
    os.lseek(fd, offset, os.SEEK_SET)
    return os.read(fd, 1)


def _file() -> Path:
    return cache_dir("verify") / "history.jsonl"
