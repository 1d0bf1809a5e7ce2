"""Objects that a Loader returns for attributes of torch's DataLoader, so that training frameworks can use a Loader.

Frameworks use a loader that is not torch's DataLoader unchanged, except that they read these attributes (Lightning 2.6,
Accelerate 1.15, transformers 5.22; timm and MMEngine are similar):

    len(loader)                            Lightning, HF Trainer: the length of an epoch
    batch_size                             Accelerate: DeepSpeed's micro batch
    dataset                                HF Trainer and many scripts: its len() is the number of samples
    set_epoch                              HF Trainer
    sampler.set_epoch                      Lightning, timm, MMEngine
    sampler                                Lightning: overfit_batches requires a SequentialSampler, or none at all
    batch_sampler.sampler.set_epoch        Lightning, MMEngine
    batch_sampler.batch_size               Lightning: DeepSpeed's micro batch
    num_workers                            no framework; scripts print it
    state_dict, load_state_dict            Lightning: kept in its checkpoints; Accelerate: when registered

`pin_memory`, `collate_fn`, `generator` and others are read only from a real DataLoader, such as `penstock.DataLoader`.
Accelerate makes a loader of its own from such a one; `keep_in_accelerate` lets that run on Penstock too.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from torch.utils.data import DataLoader, IterableDataset, Sampler, SequentialSampler

from penstock.core.types import Ids
from penstock.errors import SettingError


class SampleCount:
    """A dataset that has only a length: the samples that an epoch delivers, over all ranks.

    It is not an IterableDataset, because Lightning warns of one that has a length. It refuses to be indexed, because a
    framework that tries this would read the epoch through a DataLoader of its own.
    """

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: object) -> NoReturn:
        raise SettingError(
            "a Loader has no access to single samples",
            advice="To resume, use load_state_dict, and with HF's Trainer ignore_data_skip=True; "
            "for access by index there is penstock.datasets.ShardDataset",
        )

    __iter__ = None  # otherwise Python would call __getitem__ with indices from 0 on


class EpochSampler(Sampler[int]):
    """The numbers of this rank's samples in the order of the epoch. Setting its epoch sets that of the loader."""

    def __init__(self, batches: Callable[[], Iterable[Ids]], length: int, set_epoch: Callable[[int], None]) -> None:
        self._batches = batches
        self._length = length
        self.set_epoch = set_epoch

    def __iter__(self) -> Iterator[int]:
        for batch in self._batches():
            yield from batch.tolist()

    def __len__(self) -> int:
        return self._length


class SequentialEpochSampler(EpochSampler, SequentialSampler):
    """An EpochSampler of an order without shuffling, which frameworks recognise by its base class."""


# -- Accelerate and penstock.DataLoader --------------------------------------------------------------------------------

_ARGUMENTS = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "in_order",
)
"""Arguments of a DataLoader that are attributes of the same names, besides those that decide its order."""


def keep_in_accelerate(kind: type[DataLoader[Any]]) -> None:
    """Let Accelerate keep a loader of this kind, if Accelerate is loaded; calling this again does nothing.

    `prepare` and `skip_first_batches` make a torch DataLoader of a loader's attributes, with samplers that give each
    process its share, and put it into a loader of their own that moves batches to the device. Where they are given a
    loader of this kind, the loader inside is replaced by one of this kind with the same arguments.
    """
    module = sys.modules.get("accelerate.data_loader")
    for name in ("prepare_data_loader", "skip_first_batches") if module is not None else ():
        made_by = getattr(module, name, None)
        if made_by is None or hasattr(made_by, "keeps"):
            continue
        keeping = _keeping(made_by, kind)
        for each in list(sys.modules.values()):  # Accelerate and transformers import them by name
            package = getattr(each, "__name__", "").partition(".")[0]
            if package in ("accelerate", "transformers") and vars(each).get(name) is made_by:
                setattr(each, name, keeping)


def _keeping(made_by: Callable[..., Any], kind: type[DataLoader[Any]]) -> Callable[..., Any]:
    @functools.wraps(made_by)
    def make(dataloader: Any, *arguments: Any, **settings: Any) -> Any:
        made = made_by(dataloader, *arguments, **settings)
        if isinstance(dataloader, kind):
            _replace_base(made, kind)
        return made

    make.keeps = kind  # type: ignore[attr-defined]
    return make


def _replace_base(made: Any, kind: type[DataLoader[Any]]) -> None:
    """Replace the loader inside a loader of Accelerate by one of this kind, unless it is one."""
    base = getattr(made, "base_dataloader", None)
    if not isinstance(base, DataLoader) or isinstance(base, kind):
        return
    arguments = {name: getattr(base, name) for name in _ARGUMENTS if hasattr(base, name)}
    if base.batch_size is None and base.batch_sampler is not None:
        arguments |= {"batch_sampler": base.batch_sampler}
    else:
        arguments |= {"batch_size": base.batch_size, "drop_last": base.drop_last}
        if not isinstance(base.dataset, IterableDataset):
            arguments["sampler"] = base.sampler
    made.base_dataloader = kind(base.dataset, **arguments)
    made.dl_state_dict = made.base_dataloader.state_dict()
