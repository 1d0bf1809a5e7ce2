"""What is done to a batch where it arrives: JPEGs that were left to the card are decoded, pictures finished."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import BlockSource
from penstock.core.slab_layout import EncodedSizes
from penstock.data.device.gpu_decode.decode_split import SplitController, SplitPolicy, choose_split
from penstock.data.device.transform.draw import DrawnTransforms, draw_transforms
from penstock.data.fields.base import Field
from penstock.data.fields.gpu_image import GpuDecodedImage
from penstock.data.fields.image import Image
from penstock.errors import PenstockError, SettingError

if TYPE_CHECKING:
    import torch

    from penstock.data.device.gpu_decode.batch_decoder import BatchDecoder
    from penstock.data.device.transform.kernel_transform import ApplyTransform

log = logging.getLogger("penstock")

SENDERS = 2
"""Threads, where the card decodes: while one waits for the decoder, the other has its pictures placed."""

Ids = NDArray[np.int64]
Arrays = dict[str, NDArray[Any]]
DeviceBuffers = dict[str, tuple["torch.Tensor", "torch.Tensor"]]
"""By field: the array as a tensor, and memory on the device for it."""


@dataclass(frozen=True, slots=True)
class SlabBatch:
    """A complete batch, as it lies in its slab."""

    arrays: Arrays
    slab: int
    samples: Ids
    epoch: int
    encoded: Mapping[str, EncodedSizes] = field(default_factory=dict)
    """By field, where there are any: which slots hold a JPEG and not its pixels."""
    copied: Callable[[], None] | None = None
    """To be called once, when the slab may be used again; None if whoever sees the arrays holds it."""


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """What came out."""

    tensors: dict[str, Any]
    failures: dict[int, PenstockError] = field(default_factory=dict)
    """Slots whose picture could not be decoded after all."""


@dataclass(frozen=True, slots=True)
class TransformSeeds:
    """By what samples throw them: on arrival as in workers."""

    seed: int
    supply: BlockSource

    def numbers(self, samples: Ids) -> Ids:
        """Each sample's own; one that a sampler picks throws by its place in the epoch."""
        return self.supply.rng_ids(samples)


@dataclass(frozen=True)
class DeviceStage:
    """For all fields of a loader."""

    finishing: Mapping[str, Image] = field(default_factory=dict)
    """Fields that have a finish."""
    pictures: Mapping[str, BatchDecoder] = field(default_factory=dict)
    """Fields whose JPEGs may have been left to the card."""
    dice: TransformSeeds | None = None
    """Where anything is finished."""
    balance: SplitController | None = None
    """Where both sides decode."""
    _finishers: dict[str, ApplyTransform] = field(default_factory=dict, init=False)
    """Of the fields that have been finished once."""

    def draw_transforms(self, shipment: SlabBatch) -> dict[str, DrawnTransforms]:
        """What chance has in store, for each field that is finished."""
        if self.dice is None:
            return {}
        numbers = self.dice.numbers(shipment.samples)
        return {
            name: draw_transforms(image.gpu_transform, image.sides, self.dice.seed, shipment.epoch, numbers)
            for name, image in self.finishing.items()
            if image.gpu_transform is not None
        }

    def make_room(self, shipment: SlabBatch, device: torch.device) -> DeviceBuffers:
        """For every array that is only copied: apart from the copy, which is not slow because this takes a while."""
        import torch

        plain = [name for name in shipment.arrays if name not in shipment.encoded]
        hosts = {name: torch.from_numpy(shipment.arrays[name]) for name in plain}
        return {name: (host, torch.empty_like(host, device=device)) for name, host in hosts.items()}

    def unpack(self, shipment: SlabBatch, device: torch.device, rooms: DeviceBuffers | None = None) -> DeviceBatch:
        """Every array on the device, on its current stream, in its room if one was made; pixels instead of JPEGs."""
        import torch

        arrived = DeviceBatch({})
        for name, array in shipment.arrays.items():
            encoded = shipment.encoded.get(name)
            if encoded is not None:
                arrived.tensors[name], failures = self.pictures[name].decode_batch(array, encoded, device)
                arrived.failures.update(failures)
            elif rooms is not None:
                host, room = rooms[name]
                arrived.tensors[name] = room.copy_(host, non_blocking=True)
            else:
                arrived.tensors[name] = torch.from_numpy(array).to(device, non_blocking=True)
        return arrived

    def finish(self, tensors: dict[str, Any], drawn: Mapping[str, DrawnTransforms]) -> None:
        """Replace those that are to be finished, on the current stream of their device."""
        if not drawn:
            return
        from penstock.data.device.transform.kernel_transform import choose_transform

        for name, chances in drawn.items():
            image = self.finishing[name]
            assert image.gpu_transform is not None
            pixels = _planes(name, image, tensors)
            if name not in self._finishers:
                self._finishers[name] = choose_transform(image.gpu_transform, pixels, chances)
            tensors[name] = self._finishers[name](pixels, chances)


def _planes(name: str, image: Image, tensors: Mapping[str, Any]) -> Any:
    """(samples, 3, height, width), however it lies, if a transform has left it as it was."""
    pixels = tensors.get(name)
    shape = (3, *image.sides) if image.layout == "CHW" else (*image.sides, 3)
    if pixels is None or tuple(pixels.shape[1:]) != shape or str(pixels.dtype) != "torch.uint8":
        found = "is missing" if pixels is None else f"is {pixels.dtype}{list(pixels.shape[1:])}"
        raise SettingError(
            f"{name} {found} after the transform, where its gpu_transform expects uint8{list(shape)}",
            advice="Let the transform keep its shape and dtype, or do without gpu_transform",
        )
    return pixels.permute(0, 3, 1, 2) if image.layout == "HWC" else pixels


class DevicePlan:
    """What a loader's fields want done on arrival; made once, and begun for each engine."""

    def __init__(self, fields: Mapping[str, Field] | None, device: str, seed: int, *, transformed: bool) -> None:
        self._seed = seed
        self.fields = None if fields is None else {name: _for_workers(field) for name, field in fields.items()}
        """As workers are to have them."""
        own = (self.fields or {}).items()
        self._sharing: dict[str, SplitPolicy] = {}
        self._on_card = {name: field for name, field in own if isinstance(field, GpuDecodedImage)}
        images = {name: field.image if isinstance(field, GpuDecodedImage) else field for name, field in own}
        self._finishing = {
            name: image
            for name, image in images.items()
            if isinstance(image, Image) and image.gpu_transform is not None
        }
        if device == "numpy" and (self._finishing or self._on_card):
            raise SettingError("gpu_transform and decode need tensors", advice='Use device="cpu" or "cuda"')
        if transformed and self._on_card:
            raise SettingError(
                "a transform runs in the workers and needs pixels there, so the card cannot decode",
                advice="Use gpu_transform or batch_transform, or decode='cpu'",
            )

    @property
    def senders(self) -> int:
        """Threads that decoding on the card keeps busy here; with auto it begins with nothing, and may get nothing."""
        return SENDERS if any(field.image.decode != "auto" for field in self._on_card.values()) else 0

    def begin(self, device: str, workers: int, supply: BlockSource) -> DeviceStage:
        """For a loader that has looked at its first samples; decides what each side decodes."""
        pictures = {name: found for name in self._on_card if (found := self._pictures(name, device, workers))}
        shared = [(self._on_card[name].gpu_fraction, self._sharing[name]) for name in pictures]
        dice = TransformSeeds(self._seed, supply) if self._finishing else None
        return DeviceStage(self._finishing, pictures, dice, SplitController(shared) if shared else None)

    def _pictures(self, name: str, device: str, workers: int) -> BatchDecoder | None:
        import torch

        from penstock.data.device.gpu_decode import decoders
        from penstock.data.device.gpu_decode.batch_decoder import BatchDecoder
        from penstock.data.device.gpu_decode.placement import choose_placement

        field = self._on_card[name]
        try:
            decoder = decoders.choose_decoder(device)
        except SettingError as error:
            if field.image.decode != "auto":
                raise
            log.info("decode='auto': the cores decode, because %s", error.reason)
            field.gpu_fraction.value = 0.0
            return None
        found = BatchDecoder(field.image, decoder, choose_placement(field.image, torch.device(device)))
        if name not in self._sharing:  # a later engine goes on where the last one stood
            self._sharing[name] = choose_split(field.image, found, field.example, torch.device(device), workers)
        field.example = None  # it need not go to every worker
        field.gpu_fraction.value = self._sharing[name].fraction
        return found


def _for_workers(field: Field) -> Field:
    """A picture that may be left to the card has a worker's side of its own."""
    return GpuDecodedImage(field) if isinstance(field, Image) and field.decode != "cpu" else field
