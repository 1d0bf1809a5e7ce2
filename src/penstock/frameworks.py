"""Stand-ins for the parts of a DataLoader that training frameworks look into, so that a Loader can be one.

Frameworks leave what is not torch's own DataLoader as it is, but for this (Lightning 2.6, Accelerate 1.15,
transformers 5.22, and what timm and MMEngine do alike):

    len(loader)                            Lightning, HF Trainer: how long an epoch is
    batch_size                             Accelerate: DeepSpeed's micro batch
    dataset                                HF Trainer, and many a script: len() of it is the number of samples
    set_epoch                              HF Trainer
    sampler.set_epoch                      Lightning, timm, MMEngine
    sampler                                Lightning: overfit_batches wants a SequentialSampler, or none at all
    batch_sampler.sampler.set_epoch        Lightning, MMEngine
    batch_sampler.batch_size               Lightning: DeepSpeed's micro batch
    num_workers                            no framework; scripts print it
    state_dict, load_state_dict            Lightning: kept in its checkpoints; Accelerate: when registered

`pin_memory`, `collate_fn`, `generator` and so on are asked of a real DataLoader only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn

from torch.utils.data import Sampler, SequentialSampler

from penstock.core.types import Ids
from penstock.errors import SettingError


class SampleCount:
    """A dataset as far as its length: what there is to deliver in an epoch, over all ranks.

    Not an IterableDataset, for Lightning warns of one that has a length; and it refuses to be indexed, for a framework
    that tries is about to read the epoch through a DataLoader of its own.
    """

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: object) -> NoReturn:
        raise SettingError(
            "a Loader's samples cannot be had one by one",
            advice="To resume, use load_state_dict, and with HF's Trainer ignore_data_skip=True; "
            "for access by index there is penstock.datasets.ShardDataset",
        )

    __iter__ = None  # else Python would try indices from 0 on


class EpochSampler(Sampler[int]):
    """The numbers of this rank's samples in the order of the epoch; an epoch that is set here is the loader's."""

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
    """The same without shuffling, told by the class it also has."""
