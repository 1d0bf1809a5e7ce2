"""What became of earlier plans, so that the model's error is known: one line a verification, in the user's cache."""

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
READ_BYTES = 8 << 20
"""Of the file's end: some ten thousand verifications."""
WITHIN = 0.15
"""What we want the model's error to be below."""


class VerificationEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One verification."""

    version: int = VERSION
    at_unix_s: float
    plan: str
    """Fingerprint of the machine and data that the plan was made for, and of its settings."""
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
        """Of the predicted rate, as a share of the measured one."""
        if self.predicted_gain is None or self.gain <= -1:
            return None
        return (1 + self.predicted_gain) / (1 + self.gain) - 1


@dataclass(frozen=True, slots=True)
class VerificationHistory:
    """What is kept, oldest first."""

    entries: tuple[VerificationEntry, ...]
    skipped: int = 0
    """Lines that cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelError:
    """How far predictions were off."""

    count: int
    """Verifications with a prediction."""
    median: float
    """Of the absolute errors."""
    within: float
    """Share of them below WITHIN."""


def entry_of(plan: Plan, judgement: Judgement, command: Sequence[str], *, cold: bool) -> VerificationEntry:
    """As of now."""
    return VerificationEntry(
        at_unix_s=time.time(),
        plan=fingerprint_of(plan),
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


def fingerprint_of(plan: Plan) -> str:
    """The same for the same settings on the same machine and data."""
    what: Mapping[str, Any] = {"fingerprint": plan.fingerprint, "dataloader": plan.dataloader}
    return hashlib.sha256(msgspec.json.encode(what, enc_hook=str, order="deterministic")).hexdigest()[:16]


def append(entry: VerificationEntry) -> Path:
    """Returns the file. One write, so that two verifications at a time do not mix."""
    path = _file()
    text = msgspec.json.encode(entry, enc_hook=str) + b"\n"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o600)
    try:
        size = os.fstat(fd).st_size
        if size and _byte_at(fd, size - 1) != b"\n":  # somebody's last line was cut short
            text = b"\n" + text
        os.write(fd, text)
    finally:
        os.close(fd)
    return path


def read() -> VerificationHistory:
    """What can be read of it; of an endless file its end."""
    path = _file()
    if not path.exists():
        return VerificationHistory(())
    with open(path, "rb") as file:
        start = max(0, path.stat().st_size - READ_BYTES)
        file.seek(start)
        lines = file.read(READ_BYTES).splitlines()[1 if start else 0 :]
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
    """Over all verifications with a prediction; None where there are none."""
    errors = np.abs([entry.error for entry in entries if entry.error is not None])
    if not len(errors):
        return None
    within = float((errors <= WITHIN).mean())
    return ModelError(count=len(errors), median=float(np.median(errors)), within=within)


def _byte_at(fd: int, place: int) -> bytes:
    os.lseek(fd, place, os.SEEK_SET)
    return os.read(fd, 1)


def _file() -> Path:
    return cache_dir("verify") / "history.jsonl"
