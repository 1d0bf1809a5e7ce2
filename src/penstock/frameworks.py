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

`pin_memory`, `collate_fn`, `generator` and others are read only from a real DataLoader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn

from torch.utils.data import Sampler, SequentialSampler

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
