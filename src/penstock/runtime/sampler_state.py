"""How the order of an epoch is drawn again when a `penstock.DataLoader` resumes, whichever sampler decides it.

Before the first draw of an epoch, the states of all generators that a sampler may use are noted: the loader's, the
sampler's own and the global ones. To resume, they are restored, the same batches are drawn again, without making their
samples, and the global generators are put back. The indices drawn are hashed, so that a sampler which does not repeat
its order is found.
"""

from __future__ import annotations

import pickle
import random
import warnings
import zlib
from collections import deque
from types import TracebackType
from typing import Any

import numpy as np
import torch

from penstock.errors import SettingError


class SamplerReplay:
    """The state of a loader's sampler at the beginning of an epoch.

    As a context it surrounds the first draws: the generators have the state of the epoch that is resumed.
    """

    def __init__(self, loader: Any, state: dict[str, Any] | None = None) -> None:
        self._batch_sampler = loader.batch_sampler
        self._loader_generator = loader.generator
        self._resumed = state
        self._global: Any = None
        self._hash = 0
        self._hashes: deque[int] = deque([0], maxlen=loader.num_workers * (loader.prefetch_factor or 1) + 2)
        """The hash after each of the last batches drawn, so that the one after those delivered is among them."""
        self._drawn = 0
        self._warned = False
        if state is None:
            self._begin = self._now()
        else:
            self._begin = {name: state[name] for name in ("generators", "global", "sampler", "sampler_epoch")}

    def _parts(self) -> list[Any]:
        """Return the batch sampler and the samplers in it."""
        parts: list[Any] = []
        each = self._batch_sampler
        while each is not None and len(parts) < 8:
            parts.append(each)
            each = getattr(each, "sampler", None)
        return parts

    def _generators(self) -> list[torch.Generator]:
        found = [self._loader_generator, *(getattr(part, "generator", None) for part in self._parts())]
        unique = {id(each): each for each in found if isinstance(each, torch.Generator)}
        return list(unique.values())

    def generator_states(self) -> list[torch.Tensor]:
        """Return the states that the generators of the loader and of its samplers have now."""
        return [generator.get_state() for generator in self._generators()]

    def set_generators(self, states: list[torch.Tensor]) -> None:
        """Give the generators of the loader and of its samplers these states."""
        for generator, state in zip(self._generators(), states, strict=False):
            generator.set_state(state)

    def _now(self) -> dict[str, Any]:
        stateful = next((part for part in self._parts() if hasattr(part, "state_dict")), None)
        return {
            "generators": self.generator_states(),
            "global": _global_state(),
            "sampler": None if stateful is None else stateful.state_dict(),
            "sampler_epoch": [
                getattr(part, "epoch", None) if hasattr(part, "set_epoch") else None for part in self._parts()
            ],
        }

    def state(self, delivered: int = 0) -> dict[str, Any]:
        """Return what `SamplerReplay` needs to draw the order again."""
        if not self._warned and iter_is_single_use(self._batch_sampler, self._parts()):
            self._warned = True
            warnings.warn(
                "the sampler is an iterator, which gives its order only once: a loader that resumes from this state "
                "cannot repeat it. Give a sampler whose __iter__ returns a new iterator",
                stacklevel=4,
            )
        behind = self._drawn - delivered
        known = 0 <= behind < len(self._hashes)
        return {**self._begin, "hash": self._hashes[-1 - behind] if known else None}

    def length(self) -> int:
        """Return the number of batches, as the sampler gives it."""
        return len(self._batch_sampler)

    def note(self, indices: Any) -> None:
        """Note a batch that was drawn."""
        try:
            data = np.asarray(indices, np.int64).tobytes()
        except (TypeError, ValueError, OverflowError):
            data = pickle.dumps(indices)
        self._hash = zlib.crc32(data, self._hash)
        self._hashes.append(self._hash)
        self._drawn += 1

    def check(self) -> None:
        """Raise an error if the batches that were drawn again are not those of the epoch that is resumed."""
        state = self._resumed
        if state is None or state["hash"] is None or not state["batches"]:
            return
        if self._drawn < state["batches"] or self._hash != state["hash"]:
            raise SettingError(
                f"the sampler does not repeat the epoch that is resumed: its first {state['batches']} batches differ",
                stage="plan",
                advice="Use a sampler whose order depends on its seed and epoch alone, or one with a state_dict",
            )

    def __enter__(self) -> SamplerReplay:
        state = self._resumed
        if state is None:
            return self
        self._global = _global_state()
        _set_global_state(state["global"])
        self.set_generators(state["generators"])
        for part, epoch in zip(self._parts(), state["sampler_epoch"], strict=False):
            if epoch is not None and hasattr(part, "set_epoch"):
                part.set_epoch(epoch)
        if state["sampler"] is not None:
            stateful = next((part for part in self._parts() if hasattr(part, "load_state_dict")), None)
            if stateful is not None:
                stateful.load_state_dict(state["sampler"])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._global is not None:
            _set_global_state(self._global)
            self._global = None


def iter_is_single_use(batch_sampler: Any, parts: list[Any]) -> bool:
    """Return whether the order comes from an iterator, which cannot begin again."""
    return any(hasattr(part, "__next__") for part in (batch_sampler, *parts))


def _global_state() -> dict[str, Any]:
    version, words, gauss = random.getstate()
    numpy_state: Any = np.random.get_state()
    return {
        "torch": torch.default_generator.get_state(),
        "random": (version, torch.tensor(words, dtype=torch.int64), gauss),
        "numpy": (numpy_state[0], torch.from_numpy(numpy_state[1].astype(np.int64)), *numpy_state[2:]),
    }


def _set_global_state(state: dict[str, Any]) -> None:
    torch.default_generator.set_state(state["torch"])
    version, words, gauss = state["random"]
    random.setstate((version, tuple(words.tolist()), gauss))
    name, key, *rest = state["numpy"]
    np.random.set_state((name, key.numpy().astype(np.uint32), *rest))
