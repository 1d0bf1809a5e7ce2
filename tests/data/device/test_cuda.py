"""The way to a card, with torch's streams and events stood in for: what is recorded where, kept how long, said when.

A real card runs `tests/gpu`; here the same code runs on the CPU, so that it cannot rot on machines without one.
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


def pictures_by(decoder):
    image = Image(".jpg", size=8)
    return BatchDecoder(image, decoder, choose_placement(image, torch.device("cpu")))


class Event:
    """Has happened when the test says so."""

    happened = True

    def __init__(self, enable_timing=False):
        pass

    def record(self, stream):
        stream.did.append("record")

    def query(self):
        return Event.happened

    def synchronize(self):
        Event.happened = True

    def elapsed_time(self, other):
        return 1.0


class Stream:
    def __init__(self, device=None):
        self.did = []

    def record_event(self):
        self.did.append("record")
        return Event()

    def wait_event(self, event):
        self.did.append("wait")

    def wait_stream(self, other):
        self.did.append("wait")


@pytest.fixture
def cuda(monkeypatch):
    """A card without one; answers with its current stream and what was pinned."""
    seen = SimpleNamespace(stream=Stream(), pinned=[])

    def register(address, size, flags):
        seen.pinned.append(size)
        return 0

    runtime = SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=lambda address: seen.pinned.pop())
    for name, value in {
        "cudart": lambda: runtime,
        "Stream": Stream,
        "Event": Event,
        "stream": contextlib.nullcontext,
        "device": contextlib.nullcontext,
        "current_stream": lambda device: seen.stream,
        "current_device": lambda: 0,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: stream.did.append("held"))
    monkeypatch.setattr(Event, "happened", True)
    return seen


def notes(*slots):
    return np.array(slots, np.int32)


def shipment(slab, encoded=None, copied=None):
    arrays = {"image": np.full((2, 3, 8, 8), 10 * slab, np.uint8), "label": np.arange(2)}
    return DecodedBatch(arrays, slab, np.arange(2), 0, np.arange(2), {}, encoded or {}, copied)


def card_of(slabs=4, arrival=None):
    return CudaTransfer("cpu", memoryview(bytearray(slabs * SLAB)), SLAB, SLAB, arrival)


def test_a_batch_goes_there_pinned_and_the_loop_s_stream_waits_for_it(cuda):
    card = card_of()
    sent = card.send(shipment(1))
    Event.happened = False
    arrived = card.receive(sent)
    Event.happened = True
    assert arrived.tensors["image"].unique().tolist() == [10]
    assert arrived.tensors["label"].tolist() == [0, 1]
    assert cuda.stream.did == ["record", "wait", "record", "held", "held"]
    assert cuda.pinned == [SLAB]
    card.send(shipment(1))
    assert cuda.pinned == [SLAB]
    card.close()
    assert cuda.pinned == []


@pytest.mark.parametrize(
    ("slabs", "slab_bytes", "lead"),
    [(8, 4096, TransferLookahead(1, 2)), (4, 4096, TransferLookahead(1, 1)), (8, 32 << 20, TransferLookahead(1, 1))],
)
def test_small_batches_go_in_pairs_if_there_are_slabs_for_it(cuda, slabs, slab_bytes, lead):
    card = CudaTransfer("cpu", memoryview(bytearray(slabs * slab_bytes)), slab_bytes, slab_bytes)
    assert card.lookahead == lead
    card.close()


@pytest.mark.parametrize(("slabs", "lead"), [(8, TransferLookahead(2, 2)), (4, TransferLookahead(1, 1))])
def test_two_batches_are_on_their_way_where_the_card_decodes_if_there_are_slabs_for_it(cuda, slabs, lead):
    card = card_of(slabs, DeviceStage({}, {"image": pictures_by(None)}))
    assert card.lookahead == lead
    card.close()


def test_nobody_waits_for_a_batch_that_has_arrived(cuda):
    card = card_of()
    card.receive(card.send(shipment(1)))
    assert cuda.stream.did == ["record", "held", "held"]
    card.close()


def test_a_slab_comes_back_although_there_is_no_room_for_its_batch_on_the_card(cuda):
    class Full(DeviceStage):
        def allocate(self, shipment, device):
            raise torch.OutOfMemoryError("out of memory")

    card, heard = card_of(arrival=Full()), []
    with pytest.raises(torch.OutOfMemoryError):
        card.send(shipment(1, copied=lambda: heard.append(1)))
    card.reclaim_slabs()
    assert heard == [1]
    card.close()


def test_slabs_are_kept_until_they_are_copied(cuda):
    card = card_of()
    Event.happened = False
    sent = shipment(0)
    array = weakref.ref(sent.arrays["image"])
    card.send(sent)
    del sent
    card.reclaim_slabs()
    assert array() is not None
    Event.happened = True
    card.reclaim_slabs()
    assert array() is None
    card.close()


def test_who_lent_the_slab_hears_once_that_it_is_copied(cuda):
    card, heard = card_of(slabs=8), []
    Event.happened = False
    for slab in (0, 1):
        card.send(shipment(slab, copied=lambda slab=slab: heard.append(slab)))
    card.reclaim_slabs()
    assert heard == []
    Event.happened = True
    card.reclaim_slabs()
    card.reclaim_slabs()
    assert heard == [0, 1]
    card.send(shipment(2, copied=lambda: heard.append(2)))
    card.close()
    assert heard == [0, 1, 2]


def test_a_slab_whose_batch_fails_on_its_way_comes_back_too(cuda):
    class Failing(DeviceStage):
        def to_device(self, shipment, device, rooms=None):
            raise RuntimeError("no memory")

    card, heard = card_of(arrival=Failing()), []
    with pytest.raises(RuntimeError, match="no memory"):
        card.send(shipment(1, copied=lambda: heard.append(1)))
    card.reclaim_slabs()
    assert heard == [1]
    card.close()


def test_pictures_are_finished_on_their_way_and_the_card_s_time_is_kept(cuda):
    image = Image(".jpg", size=8, gpu_transform=GpuTransform("float16", size=4))
    card = card_of(arrival=DeviceStage({"image": image}))
    card.batch_requested()
    sent = card.send(shipment(2))
    Event.happened = False
    arrived = card.receive(sent)
    Event.happened = True
    assert arrived.tensors["image"].dtype == torch.float16
    assert arrived.tensors["image"].shape == (2, 3, 4, 4)
    assert torch.allclose(arrived.tensors["image"].float(), torch.tensor(20 / 255), atol=1e-3)
    assert card.gpu_times.copying_s == card.gpu_times.exposed_s == card.gpu_times.stalled_s == 1e-3
    card.close()


def test_where_the_card_decodes_a_thread_sends_and_its_errors_come_with_the_batch(cuda):
    class Decoder:
        name = "a stand-in"

        def decode(self, jpegs):
            if bytes(jpegs[0]) == b"bad":
                raise ValueError("something is wrong with us")
            return [torch.full((3, 8, 8), 7, dtype=torch.uint8) for _ in jpegs]

    card = card_of(arrival=DeviceStage({}, {"image": pictures_by(Decoder())}))
    sent = card.send(shipment(1, {"image": notes(NOT_ENCODED, EncodedImage(3, 8, 8))}))
    assert isinstance(sent, Future)
    image = card.receive(sent).tensors["image"]
    assert image[0].unique().tolist() == [10]
    assert image[1].unique().tolist() == [7]
    wrong = shipment(1, {"image": notes(EncodedImage(3, 8, 8), NOT_ENCODED)})
    wrong.arrays["image"].reshape(2, -1)[0, :3] = list(b"bad")
    sent = card.send(wrong)
    with pytest.raises(ValueError, match="wrong with us"):
        card.receive(sent)
    card.close()


def test_a_batch_is_decoded_while_the_one_before_it_is_placed_and_they_come_in_order(cuda):
    both = threading.Barrier(2, timeout=10)

    class Decoder:
        name = "a stand-in"

        def decode(self, jpegs):
            if jpegs[0][0] == 2:
                both.wait()  # until the one before is being finished
            return [torch.full((3, 8, 8), int(jpeg[0]), dtype=torch.uint8) for jpeg in jpegs]

    class Finishing(DeviceStage):
        def transform(self, tensors, drawn):
            if tensors["image"][0, 0, 0, 0] == 1:
                both.wait()

    card = card_of(arrival=Finishing({}, {"image": pictures_by(Decoder())}))
    sent = []
    for number in (1, 2, 3):
        each = shipment(number, {"image": notes(EncodedImage(1, 8, 8), EncodedImage(1, 8, 8))})
        each.arrays["image"][:, 0, 0, 0] = number
        sent.append(card.send(each))
    assert [card.receive(each).tensors["image"].unique().tolist() for each in sent] == [[1], [2], [3]]
    card.reclaim_slabs()
    card.close()


def test_a_batch_of_pixels_alone_needs_no_thread(cuda):
    card = card_of(arrival=DeviceStage({}, {"image": pictures_by(None)}))
    assert isinstance(card.send(shipment(1)), DeviceBatch)
    card.close()


def test_who_is_waited_for_is_told_batch_by_batch(cuda):
    told = []
    balance = SimpleNamespace(
        batch_requested=lambda: told.append("asked"),
        batch_sent=lambda ahead: told.append(f"sent ahead={ahead}"),
        batch_received=lambda waited_s, stalled_s: told.append(f"received stalled={stalled_s()}"),
    )
    card = card_of(arrival=DeviceStage(split_controller=balance))
    card.batch_requested()
    card.reclaim_slabs()
    first = card.send(shipment(1))
    second = card.send(shipment(2))
    card.receive(first)
    card.receive(second)
    third = card.send(shipment(1))
    assert told == [
        "asked", "sent ahead=False", "sent ahead=True", "received stalled=0.0", "received stalled=0.001",
        "sent ahead=False",
    ]  # fmt: skip
    card.receive(third)
    card.close()


def test_a_batch_that_is_dropped_on_its_way_is_no_longer_ahead(cuda):
    told = []
    balance = SimpleNamespace(batch_sent=lambda ahead: told.append(ahead))
    card = card_of(arrival=DeviceStage(split_controller=balance))
    card.send(shipment(1))
    card.send(shipment(2))
    assert told == [False, False]
    card.close()


def test_torchvision_is_asked_for_colours_on_that_device_and_we_wait_for_it(cuda, monkeypatch):
    asked = []

    def decode_jpeg(jpegs, mode, device):
        asked.append((mode, device, [jpeg.tolist() for jpeg in jpegs]))
        return [torch.zeros(3, 2, 2, dtype=torch.uint8) for _ in jpegs]

    io = ModuleType("torchvision.io")
    io.decode_jpeg, io.ImageReadMode = decode_jpeg, SimpleNamespace(RGB="rgb")
    monkeypatch.setitem(sys.modules, "torchvision", ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.io", io)
    monkeypatch.setattr(decoders, "version", lambda name: "0.26")
    decoder = TorchvisionDecoder(torch.device("cpu"))
    pictures = decoder.decode([np.array([1, 2], np.uint8), np.array([3], np.uint8)])
    assert asked == [("rgb", torch.device("cpu"), [[1, 2], [3]])]
    assert len(pictures) == 2
    assert cuda.stream.did == ["wait"]
    assert decoder.name == "torchvision 0.26 (nvJPEG)"
