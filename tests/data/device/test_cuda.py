"""Transfers to a GPU, with fakes for torch's streams and events: the order of calls, and how long slabs are kept.

`tests/gpu` runs on a real GPU; here the same code runs on the CPU, so that it is tested on machines without one.
"""

import contextlib
import sys
import threading
import weakref
from concurrent.futures import Future
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from penstock.data.batch.decoded_batch import DecodedBatch
from penstock.data.device.cuda import CudaTransfer
from penstock.data.device.device_stage import DeviceBatch, DeviceStage
from penstock.data.device.gpu_decode import decoders
from penstock.data.device.gpu_decode.batch_decoder import BatchDecoder
from penstock.data.device.gpu_decode.decoders import TorchvisionDecoder
from penstock.data.device.gpu_decode.placement import choose_placement
from penstock.data.device.transfer import TransferLookahead
from penstock.data.fields import GpuTransform, Image
from penstock.data.fields.base import NOT_ENCODED, EncodedImage

SLAB = 4096


def batch_decoder(decoder):
    image = Image(".jpg", size=8)
    return BatchDecoder(image, decoder, choose_placement(image, torch.device("cpu")))


class Event:
    """An event that is passed when the test says so."""

    passed = True

    def __init__(self, enable_timing=False):
        pass

    def record(self, stream):
        stream.calls.append("record")

    def query(self):
        return Event.passed

    def synchronize(self):
        Event.passed = True

    def elapsed_time(self, other):
        return 1.0


class Stream:
    def __init__(self, device=None):
        self.calls = []

    def record_event(self):
        self.calls.append("record")
        return Event()

    def wait_event(self, event):
        self.calls.append("wait")

    def wait_stream(self, other):
        self.calls.append("wait")


@pytest.fixture
def cuda(monkeypatch):
    """Replace torch.cuda; return an object with its current stream and the sizes of what is pinned."""
    fake = SimpleNamespace(stream=Stream(), pinned=[])

    def register(address, size, flags):
        fake.pinned.append(size)
        return 0

    runtime = SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=lambda address: fake.pinned.pop())
    for name, value in {
        "cudart": lambda: runtime,
        "Stream": Stream,
        "Event": Event,
        "stream": contextlib.nullcontext,
        "device": contextlib.nullcontext,
        "current_stream": lambda device: fake.stream,
        "current_device": lambda: 0,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: stream.calls.append("hold"))
    monkeypatch.setattr(Event, "passed", True)
    return fake


def encoded_sizes(*slots):
    return np.array(slots, np.int32)


def decoded_batch(slab, encoded=None, on_copied=None):
    arrays = {"image": np.full((2, 3, 8, 8), 10 * slab, np.uint8), "label": np.arange(2)}
    return DecodedBatch(arrays, slab, np.arange(2), 0, np.arange(2), {}, encoded or {}, on_copied)


def transfer_of(slabs=4, stage=None):
    return CudaTransfer("cpu", memoryview(bytearray(slabs * SLAB)), SLAB, SLAB, stage)


def test_a_batch_is_copied_from_a_pinned_slab_and_the_loops_stream_waits_for_it(cuda):
    transfer = transfer_of()
    sent = transfer.send(decoded_batch(1))
    Event.passed = False
    received = transfer.receive(sent)
    Event.passed = True
    assert received.tensors["image"].unique().tolist() == [10]
    assert received.tensors["label"].tolist() == [0, 1]
    assert cuda.stream.calls == ["record", "wait", "record", "hold", "hold"]
    assert cuda.pinned == [SLAB]
    transfer.send(decoded_batch(1))
    assert cuda.pinned == [SLAB]
    transfer.close()
    assert cuda.pinned == []


@pytest.mark.parametrize(
    ("slabs", "slab_bytes", "lookahead"),
    [(8, 4096, TransferLookahead(1, 2)), (4, 4096, TransferLookahead(1, 1)), (8, 32 << 20, TransferLookahead(1, 1))],
)
def test_small_batches_are_sent_in_pairs_if_there_are_enough_slabs(cuda, slabs, slab_bytes, lookahead):
    transfer = CudaTransfer("cpu", memoryview(bytearray(slabs * slab_bytes)), slab_bytes, slab_bytes)
    assert transfer.lookahead == lookahead
    transfer.close()


@pytest.mark.parametrize(("slabs", "lookahead"), [(8, TransferLookahead(2, 2)), (4, TransferLookahead(1, 1))])
def test_where_the_gpu_decodes_two_batches_are_sent_ahead_if_there_are_enough_slabs(cuda, slabs, lookahead):
    transfer = transfer_of(slabs, DeviceStage({}, {"image": batch_decoder(None)}))
    assert transfer.lookahead == lookahead
    transfer.close()


def test_the_stream_does_not_wait_for_a_batch_that_is_copied(cuda):
    transfer = transfer_of()
    transfer.receive(transfer.send(decoded_batch(1)))
    assert cuda.stream.calls == ["record", "hold", "hold"]
    transfer.close()


def test_a_slab_is_released_if_there_is_no_memory_on_the_gpu_for_its_batch(cuda):
    class OutOfMemoryStage(DeviceStage):
        def allocate(self, batch, device):
            raise torch.OutOfMemoryError("out of memory")

    transfer, released = transfer_of(stage=OutOfMemoryStage()), []
    with pytest.raises(torch.OutOfMemoryError):
        transfer.send(decoded_batch(1, on_copied=lambda: released.append(1)))
    transfer.reclaim_slabs()
    assert released == [1]
    transfer.close()


def test_slabs_are_kept_until_they_are_copied(cuda):
    transfer = transfer_of()
    Event.passed = False
    sent = decoded_batch(0)
    array = weakref.ref(sent.arrays["image"])
    transfer.send(sent)
    del sent
    transfer.reclaim_slabs()
    assert array() is not None
    Event.passed = True
    transfer.reclaim_slabs()
    assert array() is None
    transfer.close()


def test_on_copied_is_called_once_for_each_slab(cuda):
    transfer, released = transfer_of(slabs=8), []
    Event.passed = False
    for slab in (0, 1):
        transfer.send(decoded_batch(slab, on_copied=lambda slab=slab: released.append(slab)))
    transfer.reclaim_slabs()
    assert released == []
    Event.passed = True
    transfer.reclaim_slabs()
    transfer.reclaim_slabs()
    assert released == [0, 1]
    transfer.send(decoded_batch(2, on_copied=lambda: released.append(2)))
    transfer.close()
    assert released == [0, 1, 2]


def test_a_slab_is_released_if_sending_its_batch_fails(cuda):
    class FailingStage(DeviceStage):
        def to_device(self, batch, device, buffers=None):
            raise RuntimeError("no memory")

    transfer, released = transfer_of(stage=FailingStage()), []
    with pytest.raises(RuntimeError, match="no memory"):
        transfer.send(decoded_batch(1, on_copied=lambda: released.append(1)))
    transfer.reclaim_slabs()
    assert released == [1]
    transfer.close()


def test_images_are_transformed_when_sent_and_the_gpu_times_are_measured(cuda):
    image = Image(".jpg", size=8, gpu_transform=GpuTransform("float16", size=4))
    transfer = transfer_of(stage=DeviceStage({"image": image}))
    transfer.batch_requested()
    sent = transfer.send(decoded_batch(2))
    Event.passed = False
    received = transfer.receive(sent)
    Event.passed = True
    assert received.tensors["image"].dtype == torch.float16
    assert received.tensors["image"].shape == (2, 3, 4, 4)
    assert torch.allclose(received.tensors["image"].float(), torch.tensor(20 / 255), atol=1e-3)
    assert transfer.gpu_times.copying_s == transfer.gpu_times.exposed_s == transfer.gpu_times.stalled_s == 1e-3
    transfer.close()


def test_a_batch_that_the_gpu_decodes_is_sent_by_a_thread_whose_errors_receive_raises(cuda):
    class Decoder:
        name = "fake"

        def decode(self, jpegs):
            if bytes(jpegs[0]) == b"bad":
                raise ValueError("the decoder is broken")
            return [torch.full((3, 8, 8), 7, dtype=torch.uint8) for _ in jpegs]

    transfer = transfer_of(stage=DeviceStage({}, {"image": batch_decoder(Decoder())}))
    sent = transfer.send(decoded_batch(1, {"image": encoded_sizes(NOT_ENCODED, EncodedImage(3, 8, 8))}))
    assert isinstance(sent, Future)
    image = transfer.receive(sent).tensors["image"]
    assert image[0].unique().tolist() == [10]
    assert image[1].unique().tolist() == [7]
    wrong = decoded_batch(1, {"image": encoded_sizes(EncodedImage(3, 8, 8), NOT_ENCODED)})
    wrong.arrays["image"].reshape(2, -1)[0, :3] = list(b"bad")
    sent = transfer.send(wrong)
    with pytest.raises(ValueError, match="decoder is broken"):
        transfer.receive(sent)
    transfer.close()


def test_a_batch_is_decoded_while_the_one_before_it_is_transformed_and_they_are_received_in_order(cuda):
    both = threading.Barrier(2, timeout=10)

    class Decoder:
        name = "fake"

        def decode(self, jpegs):
            if jpegs[0][0] == 2:
                both.wait()  # until the batch before it is being transformed
            return [torch.full((3, 8, 8), int(jpeg[0]), dtype=torch.uint8) for jpeg in jpegs]

    class WaitingStage(DeviceStage):
        def transform(self, tensors, drawn):
            if tensors["image"][0, 0, 0, 0] == 1:
                both.wait()

    transfer = transfer_of(stage=WaitingStage({}, {"image": batch_decoder(Decoder())}))
    sent = []
    for number in (1, 2, 3):
        each = decoded_batch(number, {"image": encoded_sizes(EncodedImage(1, 8, 8), EncodedImage(1, 8, 8))})
        each.arrays["image"][:, 0, 0, 0] = number
        sent.append(transfer.send(each))
    assert [transfer.receive(each).tensors["image"].unique().tolist() for each in sent] == [[1], [2], [3]]
    transfer.reclaim_slabs()
    transfer.close()


def test_a_batch_without_jpegs_is_not_sent_by_a_thread(cuda):
    transfer = transfer_of(stage=DeviceStage({}, {"image": batch_decoder(None)}))
    assert isinstance(transfer.send(decoded_batch(1)), DeviceBatch)
    transfer.close()


def test_the_split_controller_is_informed_of_every_batch(cuda):
    calls = []
    controller = SimpleNamespace(
        batch_requested=lambda: calls.append("requested"),
        batch_sent=lambda ahead: calls.append(f"sent ahead={ahead}"),
        batch_received=lambda waited_s, stalled_s: calls.append(f"received stalled={stalled_s()}"),
    )
    transfer = transfer_of(stage=DeviceStage(split_controller=controller))
    transfer.batch_requested()
    transfer.reclaim_slabs()
    first = transfer.send(decoded_batch(1))
    second = transfer.send(decoded_batch(2))
    transfer.receive(first)
    transfer.receive(second)
    third = transfer.send(decoded_batch(1))
    assert calls == [
        "requested", "sent ahead=False", "sent ahead=True", "received stalled=0.0", "received stalled=0.001",
        "sent ahead=False",
    ]  # fmt: skip
    transfer.receive(third)
    transfer.close()


def test_a_batch_that_is_dropped_before_it_is_received_is_no_longer_ahead(cuda):
    calls = []
    controller = SimpleNamespace(batch_sent=lambda ahead: calls.append(ahead))
    transfer = transfer_of(stage=DeviceStage(split_controller=controller))
    transfer.send(decoded_batch(1))
    transfer.send(decoded_batch(2))
    assert calls == [False, False]
    transfer.close()


def test_torchvision_decodes_to_rgb_on_the_device_and_its_stream_is_waited_for(cuda, monkeypatch):
    calls = []

    def decode_jpeg(jpegs, mode, device):
        calls.append((mode, device, [jpeg.tolist() for jpeg in jpegs]))
        return [torch.zeros(3, 2, 2, dtype=torch.uint8) for _ in jpegs]

    io = ModuleType("torchvision.io")
    io.decode_jpeg, io.ImageReadMode = decode_jpeg, SimpleNamespace(RGB="rgb")
    monkeypatch.setitem(sys.modules, "torchvision", ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.io", io)
    monkeypatch.setattr(decoders, "version", lambda name: "0.26")
    decoder = TorchvisionDecoder(torch.device("cpu"))
    images = decoder.decode([np.array([1, 2], np.uint8), np.array([3], np.uint8)])
    assert calls == [("rgb", torch.device("cpu"), [[1, 2], [3]])]
    assert len(images) == 2
    assert cuda.stream.calls == ["wait"]
    assert decoder.name == "torchvision 0.26 (nvJPEG)"
