"""Who decodes JPEGs on the card: a small interface, and what is installed."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Protocol

import torch
from numpy.typing import NDArray

from penstock.errors import SettingError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

log = logging.getLogger("penstock")


class CardDecoder(Protocol):
    """Called from one thread, on the stream where the pictures are used."""

    @property
    def name(self) -> str:
        """For messages."""
        ...

    def decode(self, jpegs: Sequence[NDArray[np.uint8]]) -> list[Tensor]:
        """uint8 (3, height, width) of each; a RuntimeError if one of them, whichever, is refused."""
        ...


class Torchvision:
    """nvJPEG, as torchvision has it.

    It decodes on a stream of its own, which does not wait for ours, into memory of the stream that is current. So
    pictures get a stream that has no other memory: what it has free is free indeed, and nobody still reads it.
    """

    def __init__(self, device: torch.device) -> None:
        self.name = f"torchvision {version('torchvision')} (nvJPEG)"
        self._io = importlib.import_module("torchvision.io")
        self._device = device
        self._memory = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def decode(self, jpegs: Sequence[NDArray[np.uint8]]) -> list[Tensor]:
        """In one call."""
        using = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._memory):
            pictures: list[Tensor] = self._io.decode_jpeg(
                [torch.from_numpy(jpeg) for jpeg in jpegs], mode=self._io.ImageReadMode.RGB, device=self._device
            )
        using.wait_stream(self._memory)
        for picture in pictures:
            picture.record_stream(using)
        return pictures


def find_decoder(device: str) -> CardDecoder:
    """For that device; a SettingError says why there is none."""
    where = torch.device(device)
    advice = "Use decode='cpu', or decode='auto', which decodes there if it can"
    if where.type != "cuda":
        raise SettingError(f"device={device!r} decodes no JPEGs", advice=advice)
    if importlib.util.find_spec("torchvision") is None:
        raise SettingError("decoding on the GPU needs torchvision, which is not installed", advice=advice)
    card = torch.device("cuda", where.index if ":" in device else torch.cuda.current_device())
    decoder = Torchvision(card)
    log.info("JPEGs are decoded on %s by %s", card, decoder.name)
    return decoder
