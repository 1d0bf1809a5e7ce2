"""A plan as a YAML file: what `penstock plan -o` writes, people read and edit, and `penstock verify` applies.

    penstock_plan: 1
    source: recording
    profile: balanced
    fingerprint: {machine: {usable_cores: 16, …}, dataset: {name: Pictures, size: 100000}}
    prediction: {samples_s: 36.0, planned_samples_s: 71.5, most_gain: 2.2, limits: [{name: cpu, samples_s: 74.0}]}
    changes:
    - {scope: dataloader, name: num_workers, now: 32, then: 6, reason: …, gain: 0.98}
    dataloader: {num_workers: 6}
    loader: {reading: {num_readers: 16}}
    notes: []

`dataloader` are keyword arguments of torch's DataLoader and what workers do at their start; `loader` are keys of a
config for `Loader.from_config`, which checks them. Nothing is ignored: a key is used, or refused with the reason.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from penstock.core.plan import Change, Plan, ThroughputLimit
from penstock.core.strict_yaml import read_yaml, to_plain_values, write_yaml
from penstock.core.text import suggest_name
from penstock.errors import SettingError, StorageError, printable
from penstock.plan.fingerprint import differences
from penstock.watcher.script.apply_plan import THREADS_SETTING, LimitThreads

VERSION = 1
MAX_BYTES = 256 << 10
"""A plan larger than this is some other file."""
PREDICTION = ("samples_s", "planned_samples_s", "most_gain", "wait_share", "memory_bytes", "limits")
"""Fields of a Plan that stand together in a section of their own."""
SECTIONS = ("source", "profile", "fingerprint", "prediction", "changes", "dataloader", "loader", "notes")
_HEAD = """\
# What to change in a training, why, and what it should give. What stands under `dataloader` is applied:
# take out what you do not want, and let the rest be measured.
#     penstock verify {name} -- python train.py
"""
LONGEST_REASON = 300
"""Characters of somebody else's message, which may quote a whole file."""

Source = str | os.PathLike[str]


class DataLoaderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan may set on torch's DataLoader, and of what kind it is; `observe.applied` sets it."""

    num_workers: Annotated[int, msgspec.Meta(ge=0)] = 0
    prefetch_factor: Annotated[int, msgspec.Meta(ge=1)] | None = None
    pin_memory: bool = False
    persistent_workers: bool = False
    in_order: bool = True
    multiprocessing_context: Literal["fork", "forkserver", "spawn"] | None = None
    worker_threads: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """That libraries may start in each worker: not torch's own setting."""


# -- files -----------------------------------------------------------------------------------------------------------


def load_plan(path: Source) -> Plan:
    """The plan in a file; a SettingError names the file and the key."""
    name = os.fspath(path)
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise SettingError(f"{name}: cannot be read: {_reason(error)}") from error
    try:
        return plan_from_yaml(data)
    except SettingError as error:
        raise SettingError(f"{name}: {error.reason}", advice=error.advice) from error


def save_plan(plan: Plan, path: Source) -> None:
    """To a file that `load_plan` reads and people may edit."""
    name = Path(path).name
    text = _HEAD.format(name=name if name.isprintable() else "plan.yaml") + plan_to_yaml(plan)
    try:
        Path(path).write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:
        raise StorageError(f"cannot write {os.fspath(path)}: {_reason(error)}", stage="plan") from error


def _reason(error: OSError | ValueError) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


# -- text ------------------------------------------------------------------------------------------------------------


def plan_document(plan: Plan) -> dict[str, Any]:
    """As plain values, section by section: what the file holds and `--json` prints."""
    document = {
        "penstock_plan": VERSION,
        "source": plan.source,
        "profile": plan.profile,
        "fingerprint": plan.fingerprint,
        "prediction": {name: value for name, value in _record(plan).items() if name in PREDICTION},
        "changes": [_record(change) for change in plan.changes],
        "dataloader": plan.dataloader,
        "loader": plan.loader,
        "notes": plan.notes,
    }
    found: dict[str, Any] = to_plain_values(document)
    return found


def plan_to_yaml(plan: Plan) -> str:
    """As text that `plan_from_yaml` reads; a plan that it would refuse is refused here."""
    text = write_yaml(plan_document(plan))
    plan_from_yaml(text.encode())
    return text


def plan_from_yaml(data: bytes) -> Plan:
    """What the text says, every key known and every value of its kind."""
    if len(data) > MAX_BYTES:
        raise SettingError(f"more than {MAX_BYTES} bytes are no plan")
    document = read_yaml(data)
    if not isinstance(document, dict) or "penstock_plan" not in document:
        raise SettingError("is no plan: penstock_plan is missing", advice="`penstock plan -o plan.yaml` writes one")
    _check_version(document.pop("penstock_plan"))
    given: dict[str, Any] = {"fingerprint": {}, **{key: value for key, value in document.items() if value is not None}}
    _check_names(given)
    prediction = given.pop("prediction", {})
    try:
        plan = msgspec.convert({**given, **prediction}, Plan)
    except msgspec.ValidationError as error:
        raise _misplaced(error) from None
    try:
        msgspec.convert(plan.dataloader, DataLoaderSettings)
    except msgspec.ValidationError as error:
        raise _misplaced(error, "dataloader.") from None
    _check_numbers(plan)
    return plan


def _record(thing: Plan | Change | ThroughputLimit) -> dict[str, Any]:
    """Its fields by name, without those that say nothing; that a setting is or becomes None says something."""
    found = {each.name: getattr(thing, each.name) for each in fields(thing)}
    if isinstance(thing, Plan):
        found["limits"] = [_record(limit) for limit in thing.limits]
    silent: dict[str, Any] = {"gain": None, "cost": "", "limits": [], **dict.fromkeys(PREDICTION[:-1])}
    return {name: value for name, value in found.items() if name not in silent or value != silent[name]}


# -- checks ----------------------------------------------------------------------------------------------------------


def _check_version(version: Any) -> None:
    if type(version) is not int or version < 1:
        shown = str(version)[:40]
        raise SettingError(f"penstock_plan: {shown!r} is no version", advice=f"This penstock writes {VERSION}")
    if version > VERSION:
        raise SettingError(
            f"was made by a newer penstock (plans of version {version}; this one reads {VERSION})",
            advice="Update penstock to read it",
        )


def _check_names(document: Mapping[str, Any]) -> None:
    _known("", document, SECTIONS)
    _known("prediction", document.get("prediction", {}), PREDICTION)
    _known("dataloader", document.get("dataloader", {}), DataLoaderSettings.__struct_fields__)
    for key, records, kind in (
        ("changes", document.get("changes", []), Change),
        ("prediction.limits", document.get("prediction", {}).get("limits", []), ThroughputLimit),
    ):
        for at, record in enumerate(records if isinstance(records, list) else ()):
            _known(f"{key}[{at}]", record, [each.name for each in fields(kind)])


def _known(place: str, section: Any, names: Collection[str]) -> None:
    """No key of another name."""
    if not isinstance(section, dict):
        raise SettingError(f"{place}: holds no keys", advice="Write one 'key: value' a line")
    for key in section:
        if key not in names:
            shown = key[:100]
            where = f"{place}." if place else ""
            raise SettingError(f"{where}{shown}: is not known", advice=suggest_name(shown, names))


def _check_numbers(plan: Plan) -> None:
    """Rates, gains and bytes that can be."""
    rates = {f"prediction.limits[{at}].samples_s": limit.samples_s for at, limit in enumerate(plan.limits)}
    rates |= {f"prediction.{name}": getattr(plan, name) for name in PREDICTION if name != "limits"}
    for place, value in rates.items():
        if value is not None and value < 0:
            raise SettingError(f"{place}: {value} is not at least 0")
    for at, change in enumerate(plan.changes):
        if change.gain is not None and not change.gain > -1:
            raise SettingError(f"changes[{at}].gain: {change.gain} leaves nothing", advice="0.5 is half as many again")


def _misplaced(error: msgspec.ValidationError, section: str = "") -> SettingError:
    """msgspec's words, with the place as it is in the file in front."""
    reason, _, place = str(error).partition(" - at `$")
    place = place.strip(".`")
    if place.partition(".")[0].partition("[")[0] in PREDICTION:
        section = "prediction."
    return SettingError((f"{section}{place}: {reason}" if place else reason)[:LONGEST_REASON])


log = logging.getLogger("penstock")


def plan_here(path: Source) -> Plan:
    """The plan in a file; one for another machine comes with a warning for everything that is otherwise here."""
    plan = load_plan(path)
    for sentence in differences(plan):
        log.warning("%s: %s", printable(os.fspath(path)), sentence)
    return plan


def dataloader_kwargs(path: Source, *, worker_init_fn: Callable[[int], object] | None = None) -> dict[str, Any]:
    """Keyword arguments for torch's DataLoader.

    Where the plan limits the threads of workers, that is done at their start, after your own `worker_init_fn`.
    """
    found = dict(plan_here(path).dataloader)
    threads = found.pop(THREADS_SETTING, None)
    if threads is not None:
        found["worker_init_fn"] = LimitThreads(threads, worker_init_fn)
    elif worker_init_fn is not None:
        found["worker_init_fn"] = worker_init_fn
    return found


def loader_settings(path: Source) -> dict[str, Any]:
    """Keys of a config for penstock.Loader."""
    found = dict(plan_here(path).loader)
    if not found:
        log.warning("%s: sets nothing of penstock.Loader, which finds its settings itself", printable(os.fspath(path)))
    return found
