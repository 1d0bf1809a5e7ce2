"""Makes the data of the scripts: images, shards, tokens, text, a tokenizer. Each is made once per folder."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import string
import tarfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = 10
SYLLABLES = ("ka", "ri", "mo", "ten", "sa", "lu", "ver", "no", "pi", "dra")


def image_folder(target: Path, train: int, height: int, width: int, links: int = 1) -> None:
    """Write train/ and val/ with a folder per class, as torchvision's ImageFolder reads them.

    Each image of train/ has so many names, so that an epoch is longer than a run.
    """
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as processes:
        for split, count in (("train", train), ("val", max(4 * CLASSES, train // 50))):
            for label in range(CLASSES):
                (target / split / f"n{label:04d}").mkdir(parents=True, exist_ok=True)
            files = [str(target / split / f"n{i % CLASSES:04d}" / f"{i:06d}.jpg") for i in range(count)]
            list(processes.map(_write_jpeg, files, [height] * count, [width] * count, range(count), chunksize=32))
            for number in range(1, links if split == "train" else 1):
                for file in files:
                    os.link(file, file.replace(".jpg", f"-{number}.jpg"))


def _write_jpeg(file: str, height: int, width: int, seed: int) -> None:
    Path(file).write_bytes(_jpeg(height, width, seed))


def _jpeg(height: int, width: int, seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 255, (12, 16, 3), dtype=np.uint8)).resize((width, height))
    pixels = np.asarray(coarse, np.int16) + rng.integers(-12, 12, (height, width, 1), dtype=np.int16)
    out = io.BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(out, "jpeg", quality=90)
    return out.getvalue()


def image_shards(target: Path, shards: int, per_shard: int, height: int, width: int) -> None:
    """Write tar shards of JPEGs and classes, and val/ of few images."""
    encoded = [_jpeg(height, width, seed) for seed in range(64)]
    for shard in range(shards):
        with tarfile.open(target / f"train-{shard:06d}.tar", "w") as tar:
            for i in range(per_shard):
                name = f"{shard:04d}{i:06d}"
                for suffix, content in ((".jpg", encoded[i % len(encoded)]), (".cls", str(i % CLASSES).encode())):
                    member = tarfile.TarInfo(name + suffix)
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    image_folder(target, 4 * CLASSES, height, width)


def characters(target: Path, tokens: int = 1_000_000) -> None:
    """Write train.bin, val.bin and meta.pkl as nanoGPT's prepare.py does."""
    rng = np.random.default_rng(0)
    for name, count in (("train", tokens), ("val", tokens // 10)):
        rng.integers(0, 65, count, dtype=np.uint16).tofile(target / f"{name}.bin")
    letters = string.printable[:65]
    meta = {"vocab_size": 65, "itos": dict(enumerate(letters)), "stoi": {c: i for i, c in enumerate(letters)}}
    (target / "meta.pkl").write_bytes(pickle.dumps(meta))


def words(target: Path, count: int = 20_000) -> None:
    """Write names.txt: invented names, one per line."""
    rng = random.Random(0)
    names = sorted({"".join(rng.choices(SYLLABLES, k=rng.randint(2, 4))) for _ in range(count)})
    (target / "names.txt").write_text("\n".join(names) + "\n")


def sentences(target: Path, lines: int) -> None:
    """Write wikitext-2.txt, and train.txt, valid.txt and test.txt with the same kind of text."""
    rng = random.Random(0)

    def text(count: int) -> str:
        return "\n".join(" ".join(rng.choices(SYLLABLES, k=20)) + " ." for _ in range(count)) + "\n"

    (target / "wikitext-2.txt").write_text(text(lines))
    for name in ("train", "valid", "test"):
        (target / f"{name}.txt").write_text(text(lines if name == "train" else lines // 20))


def language_model(target: Path) -> None:
    """Write a tokenizer, a small GPT-2 configuration for it, and lines of text."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate(["<|endoftext|>", ".", *SYLLABLES])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="."))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    model = str(target / "model")
    special = "<|endoftext|>"
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=special, unk_token=".").save_pretrained(model)
    GPT2Config(
        vocab_size=len(vocabulary), bos_token_id=0, eos_token_id=0, n_layer=2, n_head=4, n_embd=128, n_positions=256
    ).save_pretrained(model)
    large = {
        "bos_token_id": 0,
        "eos_token_id": 0,
        "n_layer": 6,
        "n_embd": 384,
        "n_head": 6,
        "vocab_size": len(vocabulary),
        "n_positions": 256,
    }
    GPT2Config(**large).save_pretrained(str(target / "large"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=special, unk_token=".").save_pretrained(
        str(target / "large")
    )
    sentences(target, 20_000)


ACCURACY = """
import datasets
import evaluate

class Accuracy(evaluate.Metric):
    def _info(self):
        columns = datasets.Features({name: datasets.Value("int32") for name in ("predictions", "references")})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=columns)

    def _compute(self, predictions, references):
        return {"accuracy": sum(a == b for a, b in zip(predictions, references)) / max(1, len(references))}
"""
"""A metric as `evaluate.load("accuracy")` finds it in the current folder; the original is a download."""


def classification(target: Path) -> None:
    """Write sentences with labels, small and large untrained BERTs with a tokenizer, and a metric."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate(["[PAD]", ".", *SYLLABLES])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="."))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    for name, layers, width in (("small", 1, 64), ("large", 4, 256)):
        config = BertConfig(
            vocab_size=len(vocabulary),
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=4,
            intermediate_size=2 * width,
            num_labels=2,
        )
        BertForSequenceClassification(config).save_pretrained(target / name)
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token=".").save_pretrained(
            target / name
        )
    rng = random.Random(0)
    for name, count in (("train", 8000), ("valid", 100)):
        lines = [f"{' '.join(rng.choices(SYLLABLES, k=rng.randint(8, 40)))},{i % 2}" for i in range(count)]
        (target / f"{name}.csv").write_text("\n".join(["sentence,label", *lines]) + "\n")
    (target / "accuracy").mkdir(exist_ok=True)
    (target / "accuracy" / "accuracy.py").write_text(ACCURACY)


def ready(name: str, make: Callable[[Path], None], folder: Path) -> Path:
    """Return the folder of some data; make it if it is not there."""
    target = folder / name
    if not (target / ".complete").exists():
        target.mkdir(parents=True, exist_ok=True)
        make(target)
        (target / ".complete").write_text(json.dumps({"made": name}))
    return target
