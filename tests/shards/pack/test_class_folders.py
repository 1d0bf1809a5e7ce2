"""Tests of labels from folders, as torchvision's ImageFolder assigns them."""

import pytest
from tests.support.record_files import CLASSES, encoded_image, labelled_images, write_class_folders

from penstock.errors import SettingError
from penstock.shards.pack.class_folders import are_class_folders
from penstock.shards.pack.options import PackOptions
from penstock.shards.pack.plan import make_plan
from penstock.shards.pack.run import pack
from penstock.shards.pack.sources import find_pack_sources, read_samples

IMAGE = encoded_image(1)


def write(folder, names, data=IMAGE):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def labels_of(src, **options):
    """Return the class names of a folder, and the label of each sample by key; None if it has no `.cls`."""
    (source,) = find_pack_sources(str(src), PackOptions(**options))
    read = read_samples(source.select(source.complete.tolist()))
    return source.classes, {sample.key: dict(parts).get(".cls") for sample, parts in read}


def test_folders_of_images_are_classes_numbered_in_sorted_order(tmp_path):
    names = ["n02/a.JPEG", "n01/b.png", "n01/deep/er/c.jpg", "Z/d.webp"]
    assert labels_of(write(tmp_path, names)) == (
        ("Z", "n01", "n02"),
        {"Z/d": b"0", "n01/b": b"1", "n01/deep/er/c": b"1", "n02/a": b"2"},
    )


def test_the_classes_are_those_of_torchvision(tmp_path):
    # torchvision.datasets.folder.find_classes: sorted(entry.name for entry in os.scandir(directory) if entry.is_dir())
    names = ["b", "a b", "A", "ä", "10", "9", "_x"]
    classes, _ = labels_of(write(tmp_path, [f"{name}/1.jpg" for name in names]))
    assert list(classes) == sorted(names)


def test_an_image_may_have_dots_in_its_name_and_its_folder(tmp_path):
    names = ["a.v2/photo 1.5.jpg", "a.v2/photo 1.6.jpg", "b/Dr. Who vs. X.png"]
    assert labels_of(write(tmp_path, names)) == (
        ("a.v2", "b"),
        {"a.v2/photo 1.5": b"0", "a.v2/photo 1.6": b"0", "b/Dr. Who vs. X": b"1"},
    )


@pytest.mark.parametrize(
    "names",
    [
        ["a/1.jpg"],
        ["a/1.jpg", "b/1.jpg", "2.jpg"],
        ["a/1.jpg", "b/1.jpg", "b/1.txt"],
        ["a/1.jpg", "b/1.jpg", "b/1.png"],
        ["a/1.txt", "b/1.txt"],
        ["images/1.jpg", "masks/1.png"],
        ["train/a/1.jpg", "val/a/1.jpg"],
        ["a/1.jpg", "Test/1.jpg"],
    ],
)
def test_other_folders_get_no_labels(tmp_path, names):
    assert not are_class_folders(names)
    classes, labels = labels_of(write(tmp_path, names), on_bad="skip")
    assert classes == ()
    assert set(labels.values()) <= {None}


def test_metadata_of_macos_and_windows_does_not_matter(tmp_path):
    write(tmp_path, ["a/1.jpg", "b/1.jpg"])
    write(tmp_path, [".DS_Store", "a/.DS_Store", "b/Thumbs.db", "__MACOSX/a/1.jpg"], b"x")
    assert labels_of(tmp_path) == (("a", "b"), {"a/1": b"0", "b/1": b"1"})


def test_labels_can_be_left_out(tmp_path):
    assert labels_of(write(tmp_path, ["a/1.jpg", "b/1.jpg"]), labels="none") == ((), {"a/1": None, "b/1": None})


def test_labels_can_be_requested_for_any_parts_and_names(tmp_path):
    write(tmp_path, ["train/1.jpg", "train/1.txt", "val/2.jpg", "val/2.txt"])
    assert labels_of(tmp_path, labels="folder") == (("train", "val"), {"train/1": b"0", "val/2": b"1"})


def test_a_sample_outside_all_class_folders_is_refused_if_labels_are_requested(tmp_path):
    with pytest.raises(SettingError, match="'2' is in no class folder"):
        labels_of(write(tmp_path, ["a/1.jpg", "2.jpg"]), labels="folder")


def test_samples_with_labels_of_their_own_are_refused_if_labels_are_requested(tmp_path):
    write(tmp_path, ["a/1.jpg"])
    write(tmp_path, ["a/1.cls"], b"7")
    with pytest.raises(SettingError, match=r"\.cls already"):
        labels_of(tmp_path, labels="folder")


@pytest.mark.parametrize("name", ["a\nb", " a", "a\x1b[2J"])
def test_a_class_whose_name_is_no_line_is_refused(tmp_path, name):
    options = PackOptions()
    sources = list(find_pack_sources(str(write(tmp_path, [f"{name}/1.jpg", "b/1.jpg"])), options))
    with pytest.raises(SettingError, match="a class has the name"):
        make_plan(sources, options)


def run(src, folder, **options):
    overwrite = options.pop("overwrite", False)
    pack_options = PackOptions(**options)
    plan = make_plan(list(find_pack_sources(str(src), pack_options)), pack_options)
    return list(pack(plan, folder, workers=1, overwrite=overwrite))


def test_a_new_class_changes_the_fingerprints_of_all_tasks(tmp_path):
    options = PackOptions()
    write_class_folders(tmp_path, labelled_images(6))
    before = list(make_plan(list(find_pack_sources(str(tmp_path), options)), options).tasks())
    write(tmp_path, ["aardvark/1.jpg"])
    after = list(make_plan(list(find_pack_sources(str(tmp_path), options)), options).tasks())
    assert {task.fingerprint for task in before}.isdisjoint(task.fingerprint for task in after)


def test_the_file_of_classes_is_replaced_with_the_pack_and_removed_with_it(tmp_path):
    src = write_class_folders(tmp_path / "src", labelled_images(6))
    classes = tmp_path / "packed" / "classes.txt"
    run(src, tmp_path / "packed")
    assert classes.read_text().splitlines() == CLASSES
    write(src, ["aardvark/1.jpg"])
    run(src, tmp_path / "packed", overwrite=True)
    assert classes.read_text().splitlines() == ["aardvark", *CLASSES]
    run(src, tmp_path / "packed", overwrite=True, labels="none", require=(".jpg|.png",))
    assert not classes.exists()


def test_a_file_of_classes_that_is_not_from_a_pack_is_left_unchanged(tmp_path):
    src = write_class_folders(tmp_path / "src", labelled_images(6))
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "classes.txt").write_text("mine")
    with pytest.raises(SettingError, match="not from a pack"):
        run(src, tmp_path / "packed")
    assert (tmp_path / "packed" / "classes.txt").read_text() == "mine"
