"""How a worker of `penstock.DataLoader` that is not forked gets the dataset: pickled, with its large buffers shared.

A forked worker has the dataset already, and nothing of this runs.
"""

from __future__ import annotations

import importlib
import logging
import mmap
import os
import warnings
from multiprocessing.reduction import DupFd
from typing import Any

from penstock.data.batch import shared_pickle
from penstock.engine.shared_memory import SharedMemory

log = logging.getLogger("penstock")


class SharedProgram:
    """A worker program. When multiprocessing pickles it, tensors and arrays in it are placed in shared memory.

    They are placed there once for all workers. A worker that writes to them changes a copy of its own, as after a fork.
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        self._places: list[tuple[int, int]] = []
        self._memory: SharedMemory | None = None

    def __getstate__(self) -> dict[str, Any]:
        data, buffers = self._pickled()
        self._place(buffers)
        memory = self._memory
        return {
            "data": data,
            "places": self._places,
            "memory": None if memory is None else (DupFd(memory.fd), memory.size),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        buffers = []
        if state["memory"] is not None:
            duplicate, size = state["memory"]
            descriptor = duplicate.detach()
            private = memoryview(mmap.mmap(descriptor, size, mmap.MAP_PRIVATE))
            os.close(descriptor)
            buffers = [private[start : start + length] for start, length in state["places"]]
        self.__init__(shared_pickle.loads(state["data"], buffers))  # type: ignore[misc]

    def _pickled(self) -> tuple[bytes, list[memoryview]]:
        try:
            return shared_pickle.dumps(self.value)
        except Exception as error:
            try:
                cloudpickle = importlib.import_module("cloudpickle")
            except ImportError:
                warnings.warn(f"Got pickle error when attempting to start a worker process: {error}", stacklevel=2)
                error.add_note(
                    "The dataset cannot be pickled for workers that are started by spawn or forkserver. Leave "
                    "multiprocessing_context out, so that they are forked, or install cloudpickle"
                )
                raise error from None
            log.info("workers get the dataset by cloudpickle, since pickle fails: %s", error)
            return shared_pickle.dumps(self.value, cloudpickle.Pickler)

    def _place(self, buffers: list[memoryview]) -> None:
        """Copy the buffers to shared memory, unless that was done for an earlier worker of the same iteration."""
        sizes = [buffer.nbytes for buffer in buffers]
        if not buffers or (self._memory is not None and sizes == [size for _, size in self._places]):
            return
        total = sum(shared_pickle.aligned(buffer.nbytes) for buffer in buffers)
        self.close()
        self._memory = SharedMemory.create(total, "dataset")
        self._places, offset = [], 0
        for buffer in buffers:
            self._memory.view[offset : offset + buffer.nbytes] = buffer
            self._places.append((offset, buffer.nbytes))
            offset += shared_pickle.aligned(buffer.nbytes)

    def close(self) -> None:
        """Release the shared memory; workers that have it keep it."""
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.close()
