"""Works on a batch on its device: decodes the JPEGs that were left to the GPU, and transforms images."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.core.types import Bools, Ids
from penstock.data.batch.decoded_batch import DecodedBatch
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

SENDER_THREADS = 2
"""Threads that send batches where the GPU decodes: while one waits for the decoder, the other has its images placed."""

DeviceBuffers = dict[str, tuple["torch.Tensor", "torch.Tensor"]]
"""An array as a tensor, and memory on the device for it, by name."""


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class DeviceBatch:
    """A batch on its device."""

    tensors: dict[str, Any]
    """Tensors by name; arrays for the device "numpy"."""
    lists: Mapping[str, list[Any]]
    """Values without a fixed shape by name, in the order of the samples."""
    samples: Ids
    failures: Mapping[int, PenstockError] = field(default_factory=dict)
    """Slots whose image could be decoded neither by the GPU nor by the CPU."""
    ready: Any = None
    """A CUDA event behind all work on the tensors; None where there is nothing to wait for."""
    padding: Bools | None = None
    """Which samples are padding, as in `DecodedBatch`."""


@dataclass(frozen=True)
class DeviceStage:
    """The work on the device for all fields of a loader."""

    transforms: Mapping[str, Image] = field(default_factory=dict)
    """Fields that have a GPU transform."""
    decoders: Mapping[str, BatchDecoder] = field(default_factory=dict)
    """Fields whose JPEGs may have been left to the GPU."""
    seed: int = 0
    """The loader's seed, for the random draws of transforms."""
    split_controller: SplitController | None = None
    """Decides how many images the GPU decodes, where both sides decode."""
    _apply: dict[str, ApplyTransform] = field(default_factory=dict, init=False)
    """The transforms that have been used once, by field."""

    def draw(self, batch: DecodedBatch) -> dict[str, DrawnTransforms]:
        """Draw the random numbers of each field's transform; they depend on seed, epoch and sample only."""
        return {
            name: draw_transforms(image.gpu_transform, image.sides, self.seed, batch.epoch, batch.rng_ids)
            for name, image in self.transforms.items()
            if image.gpu_transform is not None
        }

    def allocate(self, batch: DecodedBatch, device: torch.device) -> DeviceBuffers:
        """Allocate device memory for every array that is only copied.

        This is done before the copies are timed: allocating takes a while, and that is not the copy's time.
        """
        import torch

        plain = [name for name in batch.arrays if name not in batch.encoded_sizes]
        hosts = {name: torch.from_numpy(batch.arrays[name]) for name in plain}
        return {name: (host, torch.empty_like(host, device=device)) for name, host in hosts.items()}

    def to_device(self, batch: DecodedBatch, device: torch.device, buffers: DeviceBuffers | None = None) -> DeviceBatch:
        """Copy every array to the device, on its current stream, and decode JPEGs there.

        Arrays are copied into `buffers`, if they were allocated.
        """
        import torch

        tensors: dict[str, Any] = {}
        failures: dict[int, PenstockError] = {}
        for name, array in batch.arrays.items():
            encoded_sizes = batch.encoded_sizes.get(name)
            if encoded_sizes is not None:
                tensors[name], failed = self.decoders[name].decode_batch(array, encoded_sizes, device)
                failures.update(failed)
            elif buffers is not None:
                host, buffer = buffers[name]
                tensors[name] = buffer.copy_(host, non_blocking=True)
            else:
                tensors[name] = torch.from_numpy(array).to(device, non_blocking=True)
        return DeviceBatch(tensors, batch.lists, batch.samples, failures, padding=batch.padding)

    def transform(self, tensors: dict[str, Any], drawn: Mapping[str, DrawnTransforms]) -> None:
        """Replace the tensors of fields with a GPU transform, on the current stream of their device."""
        if not drawn:
            return
        from penstock.data.device.transform.kernel_transform import choose_transform

        for name, draws in drawn.items():
            image = self.transforms[name]
            assert image.gpu_transform is not None
            pixels = _planes(name, image, tensors)
            if name not in self._apply:
                self._apply[name] = choose_transform(image.gpu_transform, pixels, draws)
            tensors[name] = self._apply[name](pixels, draws)


def _planes(name: str, image: Image, tensors: Mapping[str, Any]) -> Any:
    """Return a field's pixels as (samples, 3, height, width); refuse them if a transform changed shape or dtype."""
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
    """Decides what a loader's fields need on the device; makes a `DeviceStage` for each engine of the loader."""

    def __init__(self, fields: Mapping[str, Field] | None, device: str, seed: int, *, transformed: bool) -> None:
        """`transformed`: whether workers run a transform of the user."""
        self._seed = seed
        self.fields = None if fields is None else {name: _for_workers(field) for name, field in fields.items()}
        """The fields for the workers."""
        fields_by_name = (self.fields or {}).items()
        self._splits: dict[str, SplitPolicy] = {}
        """How each field's images are divided between GPU and CPU, once that is decided."""
        self._gpu_decoded = {name: field for name, field in fields_by_name if isinstance(field, GpuDecodedImage)}
        images = {name: field.image if isinstance(field, GpuDecodedImage) else field for name, field in fields_by_name}
        self._transforms = {
            name: image
            for name, image in images.items()
            if isinstance(image, Image) and image.gpu_transform is not None
        }
        if device == "numpy" and (self._transforms or self._gpu_decoded):
            raise SettingError("gpu_transform and decode need tensors", advice='Use device="cpu" or "cuda"')
        if transformed and self._gpu_decoded:
            raise SettingError(
                "a transform runs in the workers and needs pixels there, so the GPU cannot decode",
                advice="Use gpu_transform or batch_transform, or decode='cpu'",
            )
        self._check_likes()

    def _check_likes(self) -> None:
        """Refuse a field that is moved with an image, if a GPU transform moves the image further."""
        for name, declared in (self.fields or {}).items():
            image = self._transforms.get(declared.like or "")
            transform = image.gpu_transform if image is not None else None
            if transform is not None and (transform.size is not None or transform.flip):
                raise SettingError(
                    f"{name} is like={declared.like!r}, which its gpu_transform resizes, crops or mirrors afterwards",
                    advice="Use the size, crop and flip of the Image, and leave dtype, mean, std and jitter to "
                    "gpu_transform",
                )

    @property
    def sender_threads(self) -> int:
        """Threads that decoding on the GPU keeps busy; 0 for decode="auto", where the GPU decodes nothing at first."""
        decodes = any(field.image.decode != "auto" for field in self._gpu_decoded.values())
        return SENDER_THREADS if decodes else 0

    def make_stage(self, device: str, workers: int) -> DeviceStage:
        """Return the stage for an engine, and decide how many images the GPU decodes.

        The source must have decoded its first samples before: one of their JPEGs is used to measure with.
        """
        decoders = {name: found for name in self._gpu_decoded if (found := self._make_decoder(name, device, workers))}
        shared = [(self._gpu_decoded[name].gpu_fraction, self._splits[name]) for name in decoders]
        return DeviceStage(self._transforms, decoders, self._seed, SplitController(shared) if shared else None)

    def _make_decoder(self, name: str, device: str, workers: int) -> BatchDecoder | None:
        import torch

        from penstock.data.device.gpu_decode import decoders
        from penstock.data.device.gpu_decode.batch_decoder import BatchDecoder
        from penstock.data.device.gpu_decode.placement import choose_placement

        field = self._gpu_decoded[name]
        try:
            decoder = decoders.choose_decoder(device)
        except SettingError as error:
            if field.image.decode != "auto":
                raise
            log.info("decode='auto': the CPU decodes, because %s", error.reason)
            field.gpu_fraction.value = 0.0
            return None
        found = BatchDecoder(field.image, decoder, choose_placement(field.image, torch.device(device)))
        if name not in self._splits:  # a later engine continues with the split of the one before
            self._splits[name] = choose_split(field.image, found, field.example, torch.device(device), workers)
        field.example = None  # so that it is not sent to every worker
        field.gpu_fraction.value = self._splits[name].fraction
        return found


def _for_workers(field: Field) -> Field:
    """Return the field as workers decode it; an image that may be left to the GPU is handled by another field class."""
    return GpuDecodedImage(field) if isinstance(field, Image) and field.decode != "cpu" else field
