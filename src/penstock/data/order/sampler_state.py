"""The random state of a user's sampler: saved where an epoch begins, so that the epoch can be resumed in that order.

Three kinds of state are saved, as plain numbers and strings: what the sampler's own `state_dict` returns; random
generators that are attributes of the sampler; and the global random generators, if the sampler has drawn from them for
its first batch. A sampler that goes on to draw from the global generators shares them with the training loop, so its
order cannot be repeated; this is noted.
"""

from __future__ import annotations

import base64
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

from penstock.data.order.checkpoint import ORDER_SAMPLER
from penstock.errors import SettingError

CHECKED_DRAWS = 32
"""Later draws that are checked: a sampler that draws from the global generators does so for each batch, and a check
takes a tenth of a millisecond."""


class SamplerState:
    """The random state of one sampler, and of the sampler inside a batch sampler."""

    def __init__(self, sampler: Any) -> None:
        self._samplers = {"sampler": sampler}
        inner = getattr(sampler, "sampler", None)
        if inner is not None and inner is not sampler:
            self._samplers["sampler.sampler"] = inner
        self.draws_with_the_training = False
        """Whether it has drawn from the global generators after the first batch of an epoch."""
        self._checked = 0

    @contextmanager
    def first_draw(self, order: dict[str, Any]) -> Iterator[None]:
        """Draw the first batch of an epoch, in the context: from the state in `order`, or save the state there."""
        saved = order.get(ORDER_SAMPLER, {})
        self._load(saved)
        own = self.own()
        with _from_states(saved["global"]) if "global" in saved else nullcontext():
            before = _encode_all(_global_generators())
            yield
            after = _encode_all(_global_generators())
        length = _length(self._samplers["sampler"])  # of this epoch: it may be another one in each
        if "length" in saved and saved["length"] != length:
            raise SettingError(
                f"the state was saved with a sampler of length {saved['length']}, and this one has length {length}",
                stage="plan",
                advice="Resume with the sampler and the ranks it was saved with, or start the epoch anew",
            )
        drawn_from = {name: state for name, state in before.items() if after[name] != state}
        order[ORDER_SAMPLER] = {**own, "global": drawn_from, "length": length}

    @contextmanager
    def later_draw(self) -> Iterator[None]:
        """Draw a later batch, in the context, and note whether that changes the global generators."""
        if self.draws_with_the_training or self._checked >= CHECKED_DRAWS:
            yield
            return
        self._checked += 1
        before = _fingerprints()
        yield
        self.draws_with_the_training = _fingerprints() != before

    def next_order(self) -> dict[str, Any]:
        """Return what a checkpoint must hold for an epoch that has not begun."""
        own = self.own()
        return {ORDER_SAMPLER: own} if own else {}

    def own(self) -> dict[str, Any]:
        """Return the states that the sampler holds itself, by their names."""
        states: dict[str, Any] = {}
        for path, sampler in self._samplers.items():
            if is_stateful(sampler):
                states[path] = sampler.state_dict()
            else:
                states |= _encode_all(_own_generators(path, sampler))
        return states

    def _load(self, saved: Mapping[str, Any]) -> None:
        for path, sampler in self._samplers.items():
            if is_stateful(sampler):
                if path in saved:
                    sampler.load_state_dict(saved[path])
                continue
            for name, generator in _own_generators(path, sampler).items():
                if name in saved:
                    _set_state(generator, saved[name])


@contextmanager
def _from_states(states: Mapping[str, Any]) -> Iterator[None]:
    """Set these states of the global generators. At the end the training goes on with its own numbers."""
    generators = _global_generators()
    before = {name: _encode(generators[name]) for name in states if name in generators}
    try:
        for name in before:
            _set_state(generators[name], states[name])
        yield
    finally:
        for name, state in before.items():
            _set_state(generators[name], state)


def _length(sampler: Any) -> int | None:
    try:
        return len(sampler)
    except (TypeError, NotImplementedError):
        return None


def is_stateful(owner: object) -> bool:
    """Return whether an object can save and load a state of its own."""
    return callable(getattr(owner, "state_dict", None)) and callable(getattr(owner, "load_state_dict", None))


def _own_generators(path: str, sampler: Any) -> dict[str, Any]:
    shared = list(_global_generators().values())
    found = {
        f"{path}.{name}": value for name, value in getattr(sampler, "__dict__", {}).items() if _is_generator(value)
    }
    return {name: value for name, value in found.items() if not any(value is each for each in shared)}


def _global_generators() -> dict[str, Any]:
    """Return the global random generators; torch's only where it is loaded."""
    generators: dict[str, Any] = {"random": random._inst, "numpy": np.random.mtrand._rand}
    torch = sys.modules.get("torch")
    return generators if torch is None else generators | {"torch": torch.default_generator}


def _fingerprints() -> list[Any]:
    """Return the states of the global generators in a form that is quickly made and compared."""
    state = np.random.get_state()
    torch = sys.modules.get("torch")
    of_torch = None if torch is None else torch.default_generator.get_state().numpy().tobytes()
    return [random.getstate(), state[1].tobytes(), state[2], of_torch]  # type: ignore[index]


def _is_generator(value: Any) -> bool:
    torch = sys.modules.get("torch")
    kinds: tuple[type, ...] = (random.Random, np.random.RandomState, np.random.Generator)
    return isinstance(value, kinds if torch is None else (*kinds, torch.Generator))


def _encode_all(generators: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _encode(generator) for name, generator in generators.items()}


def _encode(generator: Any) -> Any:
    """Return the state of a random generator as plain numbers and strings."""
    if isinstance(generator, random.Random):
        version, words, gauss = generator.getstate()
        return [version, list(words), gauss]
    if isinstance(generator, np.random.RandomState):
        return _plain(generator.get_state(legacy=False))
    if isinstance(generator, np.random.Generator):
        return _plain(generator.bit_generator.state)
    return base64.b64encode(generator.get_state().cpu().numpy().tobytes()).decode()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _set_state(generator: Any, state: Any) -> None:
    try:
        if isinstance(generator, random.Random):
            version, words, gauss = state
            generator.setstate((version, tuple(words), gauss))
        elif isinstance(generator, np.random.RandomState):
            generator.set_state(state)
        elif isinstance(generator, np.random.Generator):
            generator.bit_generator.state = state
        else:
            import torch

            generator.set_state(torch.frombuffer(bytearray(base64.b64decode(state)), dtype=torch.uint8))
    except (TypeError, ValueError, KeyError, RuntimeError) as error:
        raise SettingError(
            f"the state of the sampler's {type(generator).__name__} in a checkpoint cannot be used: {error}",
            stage="plan",
            advice="Resume with the sampler it was saved with, or start the epoch anew",
        ) from error
