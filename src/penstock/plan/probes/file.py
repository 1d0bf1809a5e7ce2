"""What `penstock probe --json` printed, read back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from penstock.errors import SettingError
from penstock.plan.probes.results import CopyRates, DecodeRates, Handover, Probes
from penstock.storage.curve import StorageCurve

MAX_BYTES = 1 << 20
"""A file larger than this is something else."""
NAMES = ("storage", "decode", "handover", "copy")
_MAKE = "`penstock probe all SHARDS --json > probes.json` makes one"

Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """Measurements that are there; None where one is not."""

    curve: StorageCurve | None = None
    decode: DecodeRates | None = None
    handover: Handover | None = None
    copy: CopyRates | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why one is not, by its name, where the probe said so."""
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    """Of the machine that was measured."""


def probes_document(probes: Probes, fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """As plain values, with the machine they are of."""
    document: dict[str, Any] = msgspec.to_builtins(probes, enc_hook=str)
    return {**document, "fingerprint": dict(fingerprint)}


def read_probes(path: str | os.PathLike[str]) -> Probed:
    """A SettingError names the file and what is wrong with it."""
    name = os.fspath(path)
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SettingError(f"{name}: cannot be read: {reason}") from error
    try:
        return _probed(data)
    except SettingError as error:
        raise SettingError(f"{name}: {error.reason}", advice=error.advice or _MAKE) from error


def _probed(data: bytes) -> Probed:
    try:
        document = msgspec.json.decode(data) if len(data) <= MAX_BYTES else None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        document = None
    if not isinstance(document, dict) or not document.keys() & set(NAMES):
        raise SettingError("holds no probes")
    sections = {name: document.get(name) for name in NAMES}
    reasons = {name: reason for name, section in sections.items() if (reason := _skipped(section)) is not None}
    there = {name: None if name in reasons else section for name, section in sections.items()}
    storage = there["storage"]
    marked = document.get("fingerprint")
    return Probed(
        curve=_read("storage.curve", storage.get("curve") if isinstance(storage, dict) else storage, StorageCurve),
        decode=_read("decode", there["decode"], DecodeRates),
        handover=_read("handover", there["handover"], Handover),
        copy=_read("copy", there["copy"], CopyRates),
        reasons=reasons,
        fingerprint=marked if isinstance(marked, dict) else {},
    )


def _skipped(section: Any) -> str | None:
    """Why; None where it was not."""
    return str(section["reason"]) if isinstance(section, dict) and section.keys() == {"reason"} else None


def _read(place: str, section: Any, kind: type[Kind]) -> Kind | None:
    if section is None:
        return None
    try:
        return msgspec.convert(section, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise SettingError(f"{place}: {error}") from None
