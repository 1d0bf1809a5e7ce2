"""The settings of a torch DataLoader for its line in the recording, each as requested and as in force, and its size."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.recording.format import LoaderSetting
from penstock.watcher.loader_views import length_of
from penstock.watcher.script.apply_plan import replaced_settings

COPIED_SETTINGS = (
    "num_workers",
    "prefetch_factor",
    "persistent_workers",
    "in_order",
    "batch_size",
    "drop_last",
    "timeout",
)
"""Attributes of a DataLoader that are recorded as they are."""


def loader_settings(loader: Any, requested: Mapping[str, Any]) -> dict[str, LoaderSetting]:
    """Return the settings of a DataLoader by name. `requested` holds those that the command line or a caller requested.

    If a plan replaced a setting, the script's own value is the requested one. Where no request is known, `requested` of
    the returned setting is None, so a setting was changed after the request only if both values are known and differ.
    """
    in_force: dict[str, Any] = {name: getattr(loader, name) for name in COPIED_SETTINGS if hasattr(loader, name)}
    in_force["pin_memory"] = _pins_memory(loader)
    in_force["multiprocessing_context"] = _start_method(loader)
    in_force["sampler"] = qualified_name(type(_sampler(loader)))
    in_force["shuffle"] = _shuffles(_sampler(loader))
    in_force["collate_fn"] = qualified_name(getattr(loader, "collate_fn", None))
    in_force["worker_init_fn"] = getattr(loader, "worker_init_fn", None) is not None
    replaced = replaced_settings(loader)
    in_force = {name: plan_value for name, (_, plan_value) in replaced.items()} | in_force
    script_values = {name: script_value for name, (script_value, _) in replaced.items()}
    requested = {"pin_memory": bool(getattr(loader, "pin_memory", False)), **requested, **script_values}
    return {
        name: LoaderSetting(requested=_recordable(requested.get(name)), in_force=_recordable(value))
        for name, value in in_force.items()
    }


def dataset_size(loader: Any) -> int | None:
    """Return the number of samples of the loader's dataset; None if the dataset has no length."""
    return length_of(loader.dataset)


def batches_per_epoch(loader: Any) -> int | None:
    """Return the number of batches of an epoch; None if it is not known.

    For an iterable dataset it is computed without calling `len(loader)`: after such a call, torch warns if the dataset
    yields more samples than its length.
    """
    from torch.utils.data import IterableDataset

    if not isinstance(loader.dataset, IterableDataset):
        return length_of(loader)
    samples = length_of(loader.dataset)
    size: int | None = getattr(loader, "batch_size", None)
    if samples is None or size is None:
        return samples
    return samples // size if loader.drop_last else -(-samples // size)


def qualified_name(value: Any) -> str:
    """Return module.Name of a class or function, or of the class of any other object."""
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def _recordable(value: Any) -> Any:
    """Return a number, a string, a bool or None as it is, and the qualified name of anything else."""
    return value if value is None or isinstance(value, bool | int | float | str) else qualified_name(value)


def _pins_memory(loader: Any) -> bool | None:
    """Return whether batches are pinned. If there is no accelerator, torch warns and does not pin."""
    import torch

    if not getattr(loader, "pin_memory", False):
        return False
    try:
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    except AttributeError:  # before torch 2.6
        return torch.cuda.is_available()
    return accelerator is not None and accelerator.type != "mps"


def _start_method(loader: Any) -> str | None:
    """Return how worker processes are started; None without workers.

    The default method is read without fixing it, so that the script can still set another one.
    """
    import torch.multiprocessing as multiprocessing

    if getattr(loader, "num_workers", 0) == 0:
        return None
    context = getattr(loader, "multiprocessing_context", None)
    if context is not None:
        return str(context.get_start_method())
    return multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


def _sampler(loader: Any) -> Any:
    """Return the sampler inside torch's BatchSampler, or the user's own batch sampler."""
    from torch.utils.data import BatchSampler

    batch_sampler = getattr(loader, "batch_sampler", None)
    if batch_sampler is None:
        return getattr(loader, "sampler", None)
    return batch_sampler.sampler if type(batch_sampler) is BatchSampler else batch_sampler


def _shuffles(sampler: Any) -> bool | None:
    """Return whether a sampler shuffles; None if it is not torch's and has no boolean attribute `shuffle`."""
    from torch.utils.data import RandomSampler, SequentialSampler

    if isinstance(sampler, RandomSampler | SequentialSampler):
        return isinstance(sampler, RandomSampler)
    shuffle = getattr(sampler, "shuffle", None)
    return shuffle if isinstance(shuffle, bool) else None


ARGUMENT_NAMES = {
    "num_workers": ("num_workers", "workers", "n_workers", "dataloader_num_workers"),
    "prefetch_factor": ("prefetch_factor", "prefetch", "dataloader_prefetch_factor"),
}
"""The names under which scripts take a setting, as --num-workers 32, --num_workers=32 or data.num_workers=32."""
_SETTING_OF_ARGUMENT = {name: setting for setting, names in ARGUMENT_NAMES.items() for name in names}
_NAME_EQUALS_VALUE = re.compile(r"(?:--?)?(?:[\w-]+\.)*([\w-]{1,64})=(\d{1,6})")


def command_line_settings(arguments: Sequence[str]) -> dict[str, int]:
    """Return the settings that a command line gives, by their torch names. The last value counts, as in argparse."""
    found: dict[str, int] = {}
    for position, argument in enumerate(arguments):
        name_and_value = _NAME_EQUALS_VALUE.fullmatch(argument)
        next_argument = arguments[position + 1] if position + 1 < len(arguments) else ""
        if name_and_value is not None:
            name, value = name_and_value[1], name_and_value[2]
        elif argument.startswith("-") and next_argument.isdecimal() and len(next_argument) <= 6:
            name, value = argument.lstrip("-").rpartition(".")[2], next_argument
        else:
            continue
        setting = _SETTING_OF_ARGUMENT.get(name.replace("-", "_").lower())
        if setting is not None:
            found[setting] = int(value)
    return found
