"""The order of one epoch of `penstock.DataLoader`, with its position as a plain dict.

torch draws the order of an epoch and the seeds of its workers from random generators when the epoch begins. A state
holds the generators as they were then. To resume, they are set back, the epoch begins once more in the same manner, and
the indexes that were delivered are drawn and dropped.
"""

from __future__ import annotations

import base64
import copy
import json
import random
import warnings
import zlib
from array import array
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler

from penstock.data.order.sampler_state import is_stateful
from penstock.errors import SettingError

MAX_HASHES = 4096
"""Draws that are ahead of the last delivery, at most, for the hash of a state to be known."""


class EpochRng:
    """The random generators that decide a loader's epochs: those of its sampler, and the global ones.

    A loader has one of these as long as it lives. The global generators of torch, `random` and numpy belong to the
    user's program, so resuming does not change them: from then on the loader draws from generators of its own, which
    continue from the saved ones.
    """

    def __init__(self) -> None:
        self._own: _GlobalStates | None = None
        """Takes the place of the global generators after a state has been loaded."""

    def state_dict(self, loader: Any) -> dict[str, Any]:
        """Return the present states of all generators, as text, and the epochs of samplers that have one.

        Of the loader, only `generator` and `_index_sampler` are needed.
        """
        shared = self._own or _GlobalStates.now()
        return {
            "global": shared.as_text(),
            "generators": [_as_text(each.get_state()) for each in _generators(loader)],
            "epochs": [each.epoch for each in _with_epoch(loader)],
        }

    def load_state_dict(self, loader: Any, state: dict[str, Any]) -> None:
        """Set all generators to the saved states."""
        generators = _generators(loader)
        if len(generators) != len(state["generators"]):
            raise SettingError(
                f"the state was saved with {len(state['generators'])} random generators, this loader has"
                f" {len(generators)}",
                advice="Pass the same `generator` and sampler as to the loader that was saved",
            )
        for generator, text in zip(generators, state["generators"], strict=True):
            generator.set_state(_from_text(text))
        for sampler, epoch in zip(_with_epoch(loader), state["epochs"], strict=False):
            sampler.set_epoch(epoch)
        self._own = _GlobalStates.from_text(state["global"])

    def copy_for(self, loader: Any) -> torch.Generator:
        """Return a generator that draws what the next worker seed would be, without changing any other."""
        copied = torch.Generator()
        if loader.generator is not None:
            copied.set_state(loader.generator.get_state())
        else:
            copied.set_state(torch.get_rng_state() if self._own is None else self._own.torch)
        return copied

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Let code that draws from the global generators draw from the loader's own, if it has some."""
        own = self._own
        if own is None:
            yield
            return
        of_program = _GlobalStates.now()
        own.use()
        try:
            yield
        finally:
            self._own = _GlobalStates.now()
            of_program.use()


class _GlobalStates:
    """The states of the global generators of torch, `random` and numpy."""

    def __init__(self, of_torch: torch.Tensor, of_random: Any, of_numpy: Any) -> None:
        self.torch = of_torch
        self._random = of_random
        self._numpy = of_numpy

    @classmethod
    def now(cls) -> _GlobalStates:
        return cls(torch.get_rng_state(), random.getstate(), np.random.get_state())

    def use(self) -> None:
        """Set the global generators to these states."""
        torch.set_rng_state(self.torch)
        random.setstate(self._random)
        np.random.set_state(self._numpy)

    def as_text(self) -> list[str]:
        name, key, *rest = self._numpy
        of_numpy = json.dumps([name, key.tolist(), *rest])
        return [_as_text(self.torch), json.dumps(self._random), of_numpy]

    @classmethod
    def from_text(cls, text: list[str]) -> _GlobalStates:
        version, words, gauss = json.loads(text[1])
        name, key, *rest = json.loads(text[2])
        of_numpy = (name, np.array(key, np.uint32), *rest)
        return cls(_from_text(text[0]), (version, tuple(words), gauss), of_numpy)


def _samplers(loader: Any) -> tuple[Any, Any]:
    return loader._index_sampler, getattr(loader._index_sampler, "sampler", None)


def _with_epoch(loader: Any) -> list[Any]:
    """Return the samplers whose order depends on an epoch that the user sets."""
    return [
        each for each in _samplers(loader) if hasattr(each, "set_epoch") and type(getattr(each, "epoch", "")) is int
    ]


def _generators(loader: Any) -> list[torch.Generator]:
    """Return the generators that were given to the loader or its samplers, each once."""
    owners = (loader, *_samplers(loader))
    found = [getattr(owner, "generator", None) for owner in owners]
    return list({id(each): each for each in found if isinstance(each, torch.Generator)}.values())


def _as_text(state: torch.Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode()


def _from_text(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)


class ResumableSampler:
    """Takes the place of a loader's sampler in torch's iterators, counts what it draws, and can begin in mid-epoch.

    What `next` returns is what the user's sampler gives: an index, or the list of a batch's indexes. The sampler may
    have `state_dict` and `load_state_dict`, or the iterator it returns may. Of others the first part is drawn anew.
    """

    def __init__(self, sampler: Any, snapshot_every: int) -> None:
        self._sampler = sampler
        self._hash = 0
        """A hash of the indexes drawn so far; not of those that are no numbers."""
        self._hashes: deque[int] = deque([0], maxlen=MAX_HASHES)
        """The hash after each of the last draws."""
        # torch's own BatchSampler hides the iterator of the sampler inside it, whose state is needed.
        self._batched = type(sampler).__iter__ is BatchSampler.__iter__ and not is_stateful(sampler)
        self._inner = sampler.sampler if self._batched else sampler
        self._snapshot_every = snapshot_every
        """Number of draws between two states of a sampler that has states; 0: none but the first."""
        self._resume: dict[str, Any] | None = None
        self._iterator: Any = None
        """The result of iter() of the user's sampler in this epoch."""
        self._iterator_state: dict[str, Any] | None = None
        """The state that the next such iterator loads."""
        self._indexes: Iterator[Any] = iter(())
        self._started: list[Any] = []
        """The first index, if it was drawn ahead by `start`."""
        self._begun = False
        """Whether the first index of the epoch has been drawn."""
        self._exhausted = False
        self._snapshots: deque[dict[str, Any]] = deque()
        self.position = 0
        """Number of indexes drawn in this epoch."""

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> ResumableSampler:
        """Begin an epoch: a new one, or the one to resume."""
        resume = self._resume or {}
        self.position = resume.get("snapshot_position", 0)
        self._hash = resume.get("snapshot_hash", 0)
        self._hashes.clear()
        self._hashes.append(self._hash)
        self._started.clear()
        self._snapshots.clear()
        self._begun = False
        self._exhausted = resume.get("exhausted", False)
        if resume.get("sampler") is not None and is_stateful(self._inner):
            self._inner.load_state_dict(copy.deepcopy(resume["sampler"]))
        self._iterator, self._iterator_state = None, resume.get("iterator")
        if self._batched:
            self._indexes = self._draw_batches()
        else:
            self._indexes = self._begin_inner()
        return self

    def __next__(self) -> Any:
        self.start()
        if not self._started:
            raise StopIteration
        index = self._started.pop()
        self._note(index)
        if self._snapshot_every and self.position % self._snapshot_every == 0:
            self._take_snapshot()
        return index

    def _note(self, index: Any) -> None:
        """Count and hash an index that was drawn."""
        self.position += 1
        with suppress(TypeError, OverflowError):
            self._hash = zlib.crc32(array("q", index if isinstance(index, list) else [index]).tobytes(), self._hash)
        self._hashes.append(self._hash)

    def start(self) -> None:
        """Draw the next index ahead of its use, so that it does not depend on what draws random numbers meanwhile."""
        if self._resume is not None:
            resume, self._resume = self._resume, None
            self._catch_up(resume)
        elif not self._begun:
            self._take_snapshot()
        self._begun = True
        if not self._started and not self._exhausted:
            self._started.extend(_take(self._indexes, 1))

    def _draw_batches(self) -> Iterator[list[Any]]:
        """Yield batches as torch's BatchSampler does."""
        batch_size, drop_last = self._sampler.batch_size, self._sampler.drop_last
        indexes = self._begin_inner()
        while batch := _take(indexes, batch_size):
            self._exhausted = len(batch) < batch_size
            if not (self._exhausted and drop_last):
                yield batch

    def _begin_inner(self) -> Any:
        self._iterator = iter(self._inner)
        if self._iterator_state is not None and is_stateful(self._iterator):
            self._iterator.load_state_dict(copy.deepcopy(self._iterator_state))
        return self._iterator

    def _take_snapshot(self) -> None:
        """Keep the state of a sampler that has one, as it is after `position` draws."""
        sampler = self._inner.state_dict() if is_stateful(self._inner) else None
        iterator = self._iterator.state_dict() if is_stateful(self._iterator) else None
        if sampler is not None or iterator is not None:
            self._snapshots.append(
                copy.deepcopy(
                    {
                        "snapshot_position": self.position,
                        "snapshot_hash": self._hash,
                        "sampler": sampler,
                        "iterator": iterator,
                        "exhausted": self._exhausted,
                    }
                )
            )

    def _catch_up(self, resume: dict[str, Any]) -> None:
        """Draw and drop what was delivered before."""
        self._take_snapshot()
        if resume.get("begins_epoch"):
            self._started.extend(_take(self._indexes, 1))
            if not self._started:  # some samplers save the end of an epoch as their position: the next one begins
                iter(self)
                self._take_snapshot()
            return
        while self.position < resume["position"]:
            drawn = [] if self._exhausted else _take(self._indexes, 1)
            if not drawn:
                raise SettingError(
                    f"the sampler gives {self.position} indexes; the state was saved after {resume['position']}",
                    advice="Resume with the sampler and the dataset that were saved, or start the epoch anew",
                )
            self._note(drawn[0])
        if resume.get("hash", self._hash) != self._hash:
            raise SettingError(
                f"the sampler does not repeat the epoch that is resumed: its first {self.position} indexes differ",
                advice="Use a sampler whose order depends on its seed and epoch alone, or one with a state_dict",
            )
        self._take_snapshot()

    def state_at(self, position: int) -> dict[str, Any]:
        """Return the state after that number of draws, which is at most `self.position`; drop the earlier ones."""
        while len(self._snapshots) > 1 and self._snapshots[1]["snapshot_position"] <= position:
            self._snapshots.popleft()
        behind = self.position - position
        known = {"hash": self._hashes[-1 - behind]} if behind < len(self._hashes) else {}
        if self._snapshots and self._snapshots[0]["snapshot_position"] <= position:
            return {"position": position, **known, **copy.deepcopy(self._snapshots[0])}
        if any(hasattr(each, "__next__") for each in (self._sampler, self._inner)):
            warnings.warn(
                "the sampler is an iterator, which gives its order only once: a loader that resumes from this state "
                "cannot repeat it. Give a sampler whose __iter__ returns a new iterator",
                stacklevel=5,
            )
        return {"position": position, **known}

    def state_for_next_epoch(self) -> dict[str, Any]:
        """Return the state from which a new epoch begins: that of a sampler which has one, as it is now."""
        if not is_stateful(self._inner):
            return {"begins_epoch": True}
        return {"begins_epoch": True, "sampler": copy.deepcopy(self._inner.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next `iter` begin at that position."""
        self._resume = state


def _take(indexes: Iterator[Any], count: int) -> list[Any]:
    """Return the next indexes. itertools.islice would call iter(), which a sampler's iterator may not expect."""
    return list(map(next, repeat(indexes, count)))
