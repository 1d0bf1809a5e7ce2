"""A plan as a YAML file.

`penstock plan -o` writes it, users edit it, and `penstock verify` and training scripts apply it.

    penstock_plan: 1
    source: recording
    profile: balanced
    fingerprint: {machine: {usable_cores: 16, …}, dataset: {name: Images, size: 100000}}
    prediction: {samples_s: 36.0, planned_samples_s: 71.5, most_gain: 2.2, limits: [{name: cpu, samples_s: 74.0}]}
    changes:
    - {scope: dataloader, name: num_workers, now: 32, then: 6, reason: …, gain: 0.98}
    dataloader: {num_workers: 6}
    loader: {reading: {num_readers: 16}}
    notes: []

`dataloader` holds keyword arguments of torch's DataLoader, and the thread limit that workers apply at their start;
`loader` holds keys of a configuration for `Loader.from_config`, which checks them. No key is ignored: it is used, or
refused with the reason. A script applies a plan like this:

    loader = penstock.Loader.from_config("train.yaml", plan="plan.yaml")
    loader = DataLoader(dataset, batch_size=64, shuffle=True, **dataloader_kwargs("plan.yaml"))

Both warn about differences between the machine of the plan and the current one, and apply the plan all the same.
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
from penstock.core.write_file import write_result
from penstock.errors import SettingError, printable
from penstock.plan.fingerprint import differences
from penstock.watcher.script.apply_plan import THREADS_SETTING, LimitThreads

VERSION = 1
MAX_BYTES = 256 << 10
"""A larger file is not a plan."""
PREDICTION = ("samples_s", "planned_samples_s", "most_gain", "wait_share", "memory_bytes", "limits")
"""Fields of a Plan that form the section `prediction`."""
SECTIONS = ("source", "profile", "fingerprint", "prediction", "changes", "dataloader", "loader", "notes")
_HEAD = """\
# The changes to a training, with their reasons and predicted gains. The settings under `dataloader` are applied:
# remove those that you do not want, and measure the rest with
#     penstock verify {name} -- python train.py
"""
MAX_REASON = 300
"""Characters of a validation message, which may quote a whole file."""

Source = str | os.PathLike[str]

log = logging.getLogger("penstock")


class DataLoaderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of torch's DataLoader that a plan may hold, with their types.

    watcher/script/apply_plan.py sets them.
    """

    num_workers: Annotated[int, msgspec.Meta(ge=0)] = 0
    prefetch_factor: Annotated[int, msgspec.Meta(ge=1)] | None = None
    pin_memory: bool = False
    persistent_workers: bool = False
    in_order: bool = True
    multiprocessing_context: Literal["fork", "forkserver", "spawn"] | None = None
    worker_threads: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Threads that libraries may start in each worker; not a setting of torch."""


# -- files -----------------------------------------------------------------------------------------------------------


def load_plan(path: Source) -> Plan:
    """Read a plan from a file; a SettingError names the file and the key."""
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
    """Write a plan to a file that `load_plan` reads and users may edit."""
    name = Path(path).name
    text = _HEAD.format(name=name if name.isprintable() else "plan.yaml") + plan_to_yaml(plan)
    write_result(path, text)


def _reason(error: OSError | ValueError) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


# -- text ------------------------------------------------------------------------------------------------------------


def plan_document(plan: Plan) -> dict[str, Any]:
    """Return the plan as plain values, section by section, as the file holds it and `--json` prints it."""
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
    """Return the plan as text for `plan_from_yaml`; raise SettingError for a plan that it would refuse."""
    text = write_yaml(plan_document(plan))
    plan_from_yaml(text.encode())
    return text


def plan_from_yaml(data: bytes) -> Plan:
    """Parse a plan; raise SettingError for an unknown key or a value of another type."""
    if len(data) > MAX_BYTES:
        raise SettingError(f"a file of more than {MAX_BYTES} bytes is not a plan")
    document = read_yaml(data)
    if not isinstance(document, dict) or "penstock_plan" not in document:
        raise SettingError("is not a plan: penstock_plan is missing", advice="`penstock plan -o plan.yaml` writes one")
    _check_version(document.pop("penstock_plan"))
    sections: dict[str, Any] = {
        "fingerprint": {},
        **{key: value for key, value in document.items() if value is not None},
    }
    _check_names(sections)
    prediction = sections.pop("prediction", {})
    try:
        plan = msgspec.convert({**sections, **prediction}, Plan)
    except msgspec.ValidationError as error:
        raise _located_error(error) from None
    try:
        msgspec.convert(plan.dataloader, DataLoaderSettings)
    except msgspec.ValidationError as error:
        raise _located_error(error, "dataloader.") from None
    _check_numbers(plan)
    return plan


def _record(value: Plan | Change | ThroughputLimit) -> dict[str, Any]:
    """Return the fields by name, without empty ones; a setting that is or becomes None is not empty."""
    found = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Plan):
        found["limits"] = [_record(limit) for limit in value.limits]
    empty: dict[str, Any] = {"gain": None, "cost": "", "limits": [], **dict.fromkeys(PREDICTION[:-1])}
    return {name: value for name, value in found.items() if name not in empty or value != empty[name]}


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
    _check_keys("", document, SECTIONS)
    _check_keys("prediction", document.get("prediction", {}), PREDICTION)
    _check_keys("dataloader", document.get("dataloader", {}), DataLoaderSettings.__struct_fields__)
    for key, records, kind in (
        ("changes", document.get("changes", []), Change),
        ("prediction.limits", document.get("prediction", {}).get("limits", []), ThroughputLimit),
    ):
        for index, record in enumerate(records if isinstance(records, list) else ()):
            _check_keys(f"{key}[{index}]", record, [field.name for field in fields(kind)])


def _check_keys(location: str, section: Any, names: Collection[str]) -> None:
    """Raise SettingError for a section that is no mapping or has a key that is not among the names."""
    if not isinstance(section, dict):
        raise SettingError(f"{location}: holds no keys", advice="Write one 'key: value' a line")
    for key in section:
        if key not in names:
            shown = key[:100]
            prefix = f"{location}." if location else ""
            raise SettingError(f"{prefix}{shown}: is not known", advice=suggest_name(shown, names))


def _check_numbers(plan: Plan) -> None:
    """Raise SettingError for rates, gains and bytes that are impossible."""
    rates = {f"prediction.limits[{index}].samples_s": limit.samples_s for index, limit in enumerate(plan.limits)}
    rates |= {f"prediction.{name}": getattr(plan, name) for name in PREDICTION if name != "limits"}
    for location, value in rates.items():
        if value is not None and value < 0:
            raise SettingError(f"{location}: {value} is not at least 0")
    for index, change in enumerate(plan.changes):
        if change.gain is not None and not change.gain > -1:
            raise SettingError(
                f"changes[{index}].gain: {change.gain} leaves nothing", advice="0.5 means 1.5 times the rate"
            )


def _located_error(error: msgspec.ValidationError, section: str = "") -> SettingError:
    """Return msgspec's message with the location in the file in front."""
    reason, _, location = str(error).partition(" - at `$")
    location = location.strip(".`")
    if location.partition(".")[0].partition("[")[0] in PREDICTION:
        section = "prediction."
    return SettingError((f"{section}{location}: {reason}" if location else reason)[:MAX_REASON])


# -- applying a plan -------------------------------------------------------------------------------------------------


def load_plan_for_this_machine(path: Source) -> Plan:
    """Read a plan and log a warning for each difference between its machine and this one."""
    plan = load_plan(path)
    for sentence in differences(plan):
        log.warning("%s: %s", printable(os.fspath(path)), sentence)
    return plan


def dataloader_kwargs(path: Source, *, worker_init_fn: Callable[[int], object] | None = None) -> dict[str, Any]:
    """Return the plan's keyword arguments for torch's DataLoader.

    If the plan limits the threads of workers, they apply the limit at their start, after the given `worker_init_fn`.
    """
    kwargs = dict(load_plan_for_this_machine(path).dataloader)
    threads = kwargs.pop(THREADS_SETTING, None)
    if threads is not None:
        kwargs["worker_init_fn"] = LimitThreads(threads, worker_init_fn)
    elif worker_init_fn is not None:
        kwargs["worker_init_fn"] = worker_init_fn
    return kwargs


def loader_settings(path: Source) -> dict[str, Any]:
    """Return the plan's keys of a configuration for penstock.Loader."""
    settings = dict(load_plan_for_this_machine(path).loader)
    if not settings:
        log.warning("%s: sets nothing of penstock.Loader, which finds its settings itself", printable(os.fspath(path)))
    return settings
