"""MixUp and CutMix: compared with the formulas of torchvision, reproducible, and what they refuse."""

import math

import numpy as np
import pytest
import torch

import penstock
from penstock.errors import SettingError
from penstock.testing import REID, make_shards
from penstock.train.mix import CutMix, MixUp, cut_box, one_hot

SAMPLES, CLASSES = 24, 5


def batch_of(count=6, height=13, width=17, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(count, 3, height, width, generator=generator) * 255
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return {"image": images.to(dtype), "label": labels, "__key__": [str(number) for number in range(count)]}


def rng(seed=0):
    return np.random.default_rng(seed)


# -- torchvision's formulas (transforms/v2/_augment.py), written with loops ------------------------------------------


def reference_labels(labels, fraction):
    """Return one_hot(label) * fraction + one_hot(the label before) * (1 - fraction)."""
    expected = np.zeros((len(labels), CLASSES))
    for number, label in enumerate(labels.tolist()):
        expected[number, label] += fraction
        expected[number, labels.tolist()[number - 1]] += 1 - fraction
    return expected


def reference_box(height, width, fraction, centre_y, centre_x):
    ratio = 0.5 * math.sqrt(1.0 - fraction)
    half_w, half_h = int(ratio * width), int(ratio * height)
    x1, y1 = max(0, centre_x - half_w), max(0, centre_y - half_h)
    x2, y2 = min(width, centre_x + half_w), min(height, centre_y + half_h)
    return y1, y2, x1, x2


@pytest.mark.parametrize("seed", range(8))
def test_mixup_is_the_published_formula(seed):
    batch = batch_of(seed=seed)
    fraction = rng(seed).beta(0.4, 0.4)
    mixed = MixUp(alpha=0.4, classes=CLASSES)(batch, rng(seed))
    images = batch["image"].numpy().astype(np.float64)
    expected = [fraction * images[n] + (1 - fraction) * images[n - 1] for n in range(len(images))]
    assert np.allclose(mixed["image"].numpy(), expected, atol=1e-3)
    assert np.allclose(mixed["label"].numpy(), reference_labels(batch["label"], fraction), atol=1e-6)
    assert (mixed["label"].dtype, mixed["image"].dtype) == (torch.float32, torch.float32)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_cutmix_is_the_published_formula(seed, layout):
    batch = batch_of(seed=seed)
    if layout == "HWC":
        batch["image"] = batch["image"].permute(0, 2, 3, 1).contiguous()
    draws = rng(seed)
    fraction, centre_x, centre_y = draws.beta(1.0, 1.0), int(draws.integers(17)), int(draws.integers(13))
    y1, y2, x1, x2 = reference_box(13, 17, fraction, centre_y, centre_x)
    mixed = CutMix(classes=CLASSES, layout=layout)(batch, rng(seed))
    before = batch["image"].permute(0, 3, 1, 2) if layout == "HWC" else batch["image"]
    after = mixed["image"].permute(0, 3, 1, 2) if layout == "HWC" else mixed["image"]
    for number in range(len(before)):
        expected = before[number].clone()
        for y in range(y1, y2):
            for x in range(x1, x2):
                expected[:, y, x] = before[number - 1][:, y, x]
        assert torch.equal(after[number], expected)
    area = 1 - (x2 - x1) * (y2 - y1) / (13 * 17)
    assert np.allclose(mixed["label"].numpy(), reference_labels(batch["label"], area), atol=1e-6)


def test_boxes_lie_within_the_image_and_have_the_fraction_of_its_area_unless_they_are_cut_off():
    draws = rng(1)
    areas = []
    for _ in range(2000):
        fraction = draws.random()
        top, bottom, left, right = cut_box(100, 60, fraction, draws)
        assert 0 <= top <= bottom <= 100
        assert 0 <= left <= right <= 60
        if top > 0 and bottom < 100 and left > 0 and right < 60:
            areas.append((bottom - top) * (right - left) / 6000 - (1 - fraction))
    assert len(areas) > 200
    assert min(areas) > -0.05
    assert max(areas) <= 0


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_fractions_follow_the_beta_distribution(alpha):
    """Compare mean and variance of 4000 draws with 1/2 and 1 / (4 * (2 * alpha + 1)), at six standard errors."""
    draws = rng(int(alpha * 10))
    batch = {"image": torch.zeros(2, 1, 1, 8), "label": torch.tensor([0, 1])}
    mix = MixUp(alpha=alpha, classes=2)
    found = np.array([mix(batch, draws)["label"][0, 0].item() for _ in range(4000)])
    assert abs(found.mean() - 0.5) < 6 * found.std() / math.sqrt(4000)
    variance = 1 / (4 * (2 * alpha + 1))
    fourth = ((found - 0.5) ** 4).mean()
    assert abs(found.var() - variance) < 6 * math.sqrt((fourth - variance**2) / 4000)


# -- batches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mix", [MixUp(classes=CLASSES), CutMix(classes=CLASSES)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.float16, torch.bfloat16, torch.float32])
def test_images_keep_their_dtype_and_the_batch_that_was_given_is_unchanged(mix, dtype):
    batch = batch_of(dtype=dtype)
    images, labels = batch["image"].clone(), batch["label"].clone()
    mixed = mix(batch, rng(3))
    assert mixed["image"].dtype == dtype
    assert mixed["__key__"] == batch["__key__"]
    assert torch.equal(batch["image"], images)
    assert torch.equal(batch["label"], labels)
    assert not torch.equal(mixed["image"], images)
    assert torch.allclose(mixed["label"].sum(dim=1), torch.ones(6))


def test_images_of_whole_numbers_are_rounded():
    fraction = rng(4).beta(0.2, 0.2)
    batch = batch_of(dtype=torch.uint8)
    images = batch["image"].numpy().astype(np.float64)
    expected = np.round(fraction * images + (1 - fraction) * np.roll(images, 1, axis=0))
    found = MixUp(classes=CLASSES)(batch, rng(4))["image"].numpy().astype(np.float64)
    assert np.abs(found - expected).max() <= 1  # float32 may round a half to the other side
    assert (found == expected).mean() > 0.99


def test_soft_labels_are_mixed_again():
    first = MixUp(classes=CLASSES)(batch_of(), rng(1))
    again = CutMix(classes=CLASSES)(first, rng(2))
    assert torch.allclose(again["label"].sum(dim=1), torch.ones(6))
    assert again["label"].shape == (6, CLASSES)


def test_a_batch_of_one_sample_is_unchanged():
    for mix in (MixUp(classes=CLASSES), CutMix(classes=CLASSES)):
        batch = batch_of(count=1)
        mixed = mix(batch, rng(5))
        assert torch.allclose(mixed["image"], batch["image"])
        assert mixed["label"].argmax().item() == batch["label"].item()


def test_the_names_of_the_fields_can_be_set():
    batch = {"x": torch.rand(4, 3, 8, 8), "y": torch.tensor([0, 1, 2, 3], dtype=torch.int32), "label": ["a"] * 4}
    mixed = MixUp(classes=4, image="x", label="y")(batch, rng())
    assert mixed["y"].shape == (4, 4)
    assert mixed["label"] == ["a"] * 4


def test_soft_labels_give_the_loss_of_both_labels():
    batch = batch_of()
    mixed = MixUp(classes=CLASSES)(batch, rng(7))
    fraction = rng(7).beta(0.2, 0.2)
    logits = torch.randn(6, CLASSES, generator=torch.Generator().manual_seed(0))
    loss = torch.nn.functional.cross_entropy
    expected = fraction * loss(logits, batch["label"]) + (1 - fraction) * loss(logits, batch["label"].roll(1))
    assert torch.allclose(loss(logits, mixed["label"]), expected, atol=1e-5)


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [-1, CLASSES])
def test_a_label_that_is_no_class_is_refused(value):
    batch = batch_of() | {"label": torch.tensor([0, value, 0, 0, 0, 0])}
    with pytest.raises(SettingError, match=f"the label {value} is not one of 5 classes"):
        MixUp(classes=CLASSES)(batch, rng())


def test_a_label_that_is_no_class_is_nan_on_a_device_where_it_cannot_be_checked():
    assert one_hot(torch.tensor([1, -1, 5, 0]), 3).nan_to_num(nan=9).tolist() == [
        [0, 1, 0],
        [9] * 3,
        [9] * 3,
        [1, 0, 0],
    ]
    batch = {name: batch_of()[name].to("meta") for name in ("image", "label")}  # nothing can be read from this device
    for mix in (MixUp(classes=CLASSES), CutMix(classes=CLASSES)):
        mixed = mix(batch, rng())
        assert (mixed["image"].shape, mixed["label"].shape) == ((6, 3, 13, 17), (6, CLASSES))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"image": None}, "'image' of the batch is missing"),
        ({"label": [1, 2]}, "'label' of the batch is list"),
        ({"image": np.zeros((6, 3, 8, 8))}, "'image' of the batch is ndarray"),
        ({"label": torch.zeros(6)}, "torch.float32.* no labels of 5 classes"),
        ({"label": torch.zeros(6, 4)}, "no labels of 5 classes"),
        ({"label": torch.zeros(5, dtype=torch.int64)}, "'image' has 6 samples and 'label' has 5"),
    ],
)
@pytest.mark.parametrize("mix", [MixUp(classes=CLASSES), CutMix(classes=CLASSES)])
def test_batches_that_cannot_be_mixed_are_refused(mix, changes, reason):
    with pytest.raises(SettingError, match=reason):
        mix(batch_of() | changes, rng())


def test_a_batch_that_is_no_dict_is_refused():
    with pytest.raises(SettingError, match="'image' of the batch is missing"):
        MixUp(classes=CLASSES)([torch.zeros(2, 3, 8, 8), torch.zeros(2)], rng())


@pytest.mark.parametrize(("layout", "shape"), [("CHW", (6, 16, 16, 3)), ("HWC", (6, 3, 16, 16)), ("CHW", (6, 16, 16))])
def test_images_of_another_layout_are_refused(layout, shape):
    with pytest.raises(SettingError, match="is no batch of"):
        CutMix(classes=CLASSES, layout=layout)(batch_of() | {"image": torch.zeros(shape)}, rng())


@pytest.mark.parametrize("mix", [MixUp, CutMix])
@pytest.mark.parametrize(("settings", "reason"), [({"alpha": 0}, "alpha=0"), ({"alpha": math.nan}, "alpha=nan")])
def test_invalid_settings_are_refused(mix, settings, reason):
    with pytest.raises(SettingError, match=reason):
        mix(classes=5, **settings)
    with pytest.raises(SettingError, match="classes=0"):
        mix(classes=0)


# -- in a loader ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return make_shards(tmp_path_factory.mktemp("reid"), REID, samples=SAMPLES, shards=2, scale=0.05)


def fraction_draw(batch, rng):
    return rng.random(), batch["__key__"]


@pytest.fixture
def loader(make_loader, shards):
    fields = {
        "image": penstock.Image(".jpg", size=16, dtype="float32"),
        "label": penstock.Label(".json", key="camera"),
    }

    def make(**settings):
        settings = {"batch_size": 4, "shuffle": True, "seed": 5, "batch_transform": fraction_draw, **settings}
        return make_loader(shards, fields, **settings)

    return make


@pytest.mark.parametrize("mix", [penstock.MixUp, penstock.CutMix])
def test_batches_of_a_loader_are_mixed(loader, mix):
    plain = {tuple(batch["__key__"]): batch for batch in loader(batch_transform=None)}
    mixed = {tuple(batch["__key__"]): batch for batch in loader(batch_transform=mix(alpha=1.0, classes=100))}
    assert mixed.keys() == plain.keys()
    for keys, batch in mixed.items():
        assert batch["label"].shape == (4, 100)
        assert torch.allclose(batch["label"].sum(dim=1), torch.ones(4))
        assert batch["image"].shape == plain[keys]["image"].shape
    assert any(not torch.equal(mixed[keys]["image"], plain[keys]["image"]) for keys in plain)


def test_draws_are_the_same_for_any_workers_and_after_resuming(loader):
    first = loader()
    expected = [list(first), list(first)]
    for settings in ({"num_workers": 1}, {"executor": "process"}):
        other = loader(**settings)
        assert [list(other), list(other)] == expected
    stopped = loader()
    iterator = iter(stopped)
    begun = [next(iterator), next(iterator)]
    state = stopped.state_dict()
    iterator.close()
    resumed = loader()
    resumed.load_state_dict(state)
    assert begun + list(resumed) == expected[0]


def test_draws_differ_between_batches_epochs_seeds_and_ranks(loader):
    two_epochs = loader()
    draws = [draw for _ in range(2) for draw, _ in two_epochs]
    draws += [draw for draw, _ in loader(seed=6)]
    assert len(set(draws)) == len(draws) == 3 * SAMPLES / 4
    draws = [draw for rank in (0, 1) for draw, _ in loader(rank=rank, world_size=2, batch_size=2)]
    assert len(set(draws)) == len(draws) == SAMPLES / 2


def test_draws_differ_between_epochs_that_have_the_same_order(loader):
    same = loader(shuffle=False)
    first, second = list(same), list(same)
    assert [keys for _, keys in first] == [keys for _, keys in second]
    assert not {draw for draw, _ in first} & {draw for draw, _ in second}


def test_a_sampler_and_a_dataset_give_reproducible_draws(loader):
    order = {"batch_size": None, "shuffle": False, "batch_sampler": [[3, 1], [1, 3], [3, 1]]}
    found = [draw for draw, _ in loader(**order)]
    assert found == [draw for draw, _ in loader(**order)]
    assert len(set(found)) == 3
    dataset = [{"__key__": number} for number in range(12)]
    draws = [list(penstock.Loader(dataset, batch_size=3, num_workers=0, batch_transform=fraction_draw)) for _ in "ab"]
    assert [draw for draw, _ in draws[0]] == [draw for draw, _ in draws[1]]


def test_a_function_without_rng_gets_the_batch_alone(loader):
    assert {len(keys) for keys in loader(batch_transform=lambda batch: batch["__key__"])} == {4}
    assert [*loader(batch_transform=len)] == [4] * 6
    assert {type(each) for each in loader(batch_transform=dict)} == {dict}  # its signature cannot be inspected
