"""How a torch DataLoader is set, and how large it says it is."""

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


def loader_settings(loader: Any, requested: Mapping[str, Any]) -> dict[str, LoaderSetting]:
    """By name. Requested is None where nobody told us, so only a pair of values can show a change on the way.

    Where a plan was applied, the script's own values are those that were requested.
    """
    in_force: dict[str, Any] = {name: getattr(loader, name) for name in COPIED_SETTINGS if hasattr(loader, name)}
    in_force["pin_memory"] = _pins_memory(loader)
    in_force["multiprocessing_context"] = _start_method(loader)
    in_force["sampler"] = qualified_name(type(_sampler(loader)))
    in_force["shuffle"] = _shuffles(_sampler(loader))
    in_force["collate_fn"] = qualified_name(getattr(loader, "collate_fn", None))
    in_force["worker_init_fn"] = getattr(loader, "worker_init_fn", None) is not None
    changed = replaced_settings(loader)
    in_force = {name: now for name, (_, now) in changed.items()} | in_force
    own = {name: was for name, (was, _) in changed.items()}
    asked = {"pin_memory": bool(getattr(loader, "pin_memory", False)), **requested, **own}
    return {
        name: LoaderSetting(requested=_recordable(asked.get(name)), in_force=_recordable(value))
        for name, value in in_force.items()
    }


def dataset_size(loader: Any) -> int | None:
    """None where it does not tell."""
    return length_of(loader.dataset)


def batches_per_epoch(loader: Any) -> int | None:
    """Per pass. An iterable dataset's loader is not asked itself: torch would warn later if the answer was wrong."""
    from torch.utils.data import IterableDataset

    if not isinstance(loader.dataset, IterableDataset):
        return length_of(loader)
    samples = length_of(loader.dataset)
    size: int | None = getattr(loader, "batch_size", None)
    if samples is None or size is None:
        return samples
    return samples // size if loader.drop_last else -(-samples // size)


def qualified_name(thing: Any) -> str:
    """module.Name of a class or function, or of the class of anything else that is called like one."""
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{named.__module__}.{named.__qualname__}"


def _recordable(value: Any) -> Any:
    """Fit for a recording."""
    return value if value is None or isinstance(value, bool | int | float | str) else qualified_name(value)


def _pins_memory(loader: Any) -> bool | None:
    """Without an accelerator torch warns and does not pin."""
    import torch

    if not getattr(loader, "pin_memory", False):
        return False
    try:
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    except AttributeError:  # before torch 2.6
        return torch.cuda.is_available()
    return accelerator is not None and accelerator.type != "mps"


def _start_method(loader: Any) -> str | None:
    """How workers are started. The default is looked up without making it final: the script may still set it."""
    import torch.multiprocessing as multiprocessing

    if getattr(loader, "num_workers", 0) == 0:
        return None
    context = getattr(loader, "multiprocessing_context", None)
    if context is not None:
        return str(context.get_start_method())
    return multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


def _sampler(loader: Any) -> Any:
    """What decides the order: the sampler inside the batch sampler, or a batch sampler of the user's own."""
    from torch.utils.data import BatchSampler

    batch_sampler = getattr(loader, "batch_sampler", None)
    if batch_sampler is None:
        return getattr(loader, "sampler", None)
    return batch_sampler.sampler if type(batch_sampler) is BatchSampler else batch_sampler


def _shuffles(sampler: Any) -> bool | None:
    """None where the sampler is the user's own and does not tell."""
    from torch.utils.data import RandomSampler, SequentialSampler

    if isinstance(sampler, RandomSampler | SequentialSampler):
        return isinstance(sampler, RandomSampler)
    told = getattr(sampler, "shuffle", None)
    return told if isinstance(told, bool) else None


ARGUMENT_NAMES = {
    "num_workers": ("num_workers", "workers", "n_workers", "dataloader_num_workers"),
    "prefetch_factor": ("prefetch_factor", "prefetch", "dataloader_prefetch_factor"),
}
"""The names under which scripts take a setting, as --num-workers 32, --num_workers=32 or data.num_workers=32."""
_SETTINGS = {name: setting for setting, names in ARGUMENT_NAMES.items() for name in names}
_PAIR = re.compile(r"(?:--?)?(?:[\w-]+\.)*([\w-]{1,64})=(\d{1,6})")


def command_line_settings(arguments: Sequence[str]) -> dict[str, int]:
    """Settings by their torch names; the last one given counts, as with argparse."""
    found: dict[str, int] = {}
    for place, argument in enumerate(arguments):
        pair = _PAIR.fullmatch(argument)
        following = arguments[place + 1] if place + 1 < len(arguments) else ""
        if pair is not None:
            name, value = pair[1], pair[2]
        elif argument.startswith("-") and following.isdecimal() and len(following) <= 6:
            name, value = argument.lstrip("-").rpartition(".")[2], following
        else:
            continue
        setting = _SETTINGS.get(name.replace("-", "_").lower())
        if setting is not None:
            found[setting] = int(value)
    return found
