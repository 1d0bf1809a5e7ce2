"""Labels from folders: in a folder of images per class, as torchvision's ImageFolder reads, a folder's name is a class.

Classes are numbered in the sorted order of the names of the top folders, as in torchvision.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from penstock.core.types import Ints
from penstock.errors import SettingError
from penstock.shards.index import ShardIndex

IMAGE_SUFFIXES = (".jpg", ".png", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp")
"""Canonical suffixes of the files that are images."""
_SPLITS = ("train", "training", "val", "valid", "validation", "test", "testing")
_PARTS = ("image", "images", "img", "imgs", "mask", "masks", "label", "labels", "annotations")
OTHER_FOLDERS = frozenset((*_SPLITS, *_PARTS))
"""Names of folders that are splits or parts of a dataset, and not classes."""
LABEL_SUFFIX = ".cls"
CLASSES_NAME = "classes.txt"


def only_images(names: Sequence[str]) -> bool:
    """Return whether all files are images."""
    return all(os.path.splitext(name)[1].lower() in (*IMAGE_SUFFIXES, ".jpeg") for name in names)


def are_class_folders(names: Sequence[str]) -> bool:
    """Return whether loose files are a folder of images per class.

    All files are images in two or more top folders, none of these is named like a split or a part, and no two images
    have the same name apart from the ending, since they would be parts of one sample.
    """
    folders = {name.partition("/")[0] for name in names if "/" in name}
    return (
        len(folders) > 1
        and all("/" in name for name in names)
        and only_images(names)
        and OTHER_FOLDERS.isdisjoint(folder.lower() for folder in folders)
        and len({os.path.splitext(name)[0] for name in names}) == len(names)
    )


def class_numbers(index: ShardIndex, folder: str) -> tuple[tuple[str, ...], Ints]:
    """Return the names of the classes and the number of each sample's class."""
    outside = next((key for key in index.keys if "/" not in key), None)
    if outside is not None:
        raise SettingError(
            f"sample {outside!r} is in no class folder",
            shard=folder,
            stage="pack",
            advice="Move it into a folder, or leave out --labels folder.",
        )
    if LABEL_SUFFIX in map(str.lower, index.suffixes):
        raise SettingError(
            f"samples have a part {LABEL_SUFFIX} already, which the class of their folder would be stored as",
            shard=folder,
            stage="pack",
            advice="Give --labels none.",
        )
    folders = [key.partition("/")[0] for key in index.keys]
    classes = sorted(set(folders))
    numbers = {name: number for number, name in enumerate(classes)}
    return tuple(classes), np.array([numbers[name] for name in folders], np.int64)
