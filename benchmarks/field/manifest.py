"""Public training scripts: where each comes from, how it is started, and in which settings.

A setting has alternatives, which are measured: the same script with other arguments, or with data for free (`cached`).
An alternative that gains 5% or more makes its causes true; if none does, there is nothing to be found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.field import synthetic

Maker = Callable[[Path], None]


@dataclass(frozen=True)
class Script:
    """A script of a public repository."""

    name: str
    repository: str
    commit: str
    path: str
    """The file, relative to the repository."""
    needs: tuple[str, ...] = ()
    """Modules beside torch that it imports."""
    cwd: str = "."
    """The folder to start it in, relative to the repository."""
    pythonpath: str = "."
    """The folder of modules that it imports, relative to the repository."""

    @property
    def folder(self) -> str:
        """The name of its repository's folder beside the checkout."""
        return self.repository.rsplit("/", 1)[1]


@dataclass(frozen=True)
class Alternative:
    """Another run of the same setting, whose gain is measured."""

    name: str
    causes: tuple[str, ...]
    """The causes that are right if this gains 5% or more."""
    args: str | None = None
    """Arguments in place of the setting's own; None keeps them."""
    cached: bool = False
    """Whether every DataLoader repeats its first batch."""
    data: str = ""
    """Data in place of the setting's own."""


@dataclass(frozen=True)
class Setting:
    """One run of a script that is judged."""

    script: Script
    name: str
    args: str
    """{data} is the folder of the data."""
    data: str = ""
    """A name in DATA."""
    alternatives: tuple[Alternative, ...] = ()
    in_use: tuple[str, ...] = ()
    """Things that the script uses already, as words in a plan's changes; proposing one of them is a fault."""
    gpu: bool = False
    """Whether it needs a GPU machine with torchvision."""
    slow_open_ms: float = 0
    """Delay of opening a file, by a FUSE mount."""

    @property
    def full_name(self) -> str:
        return f"{self.script.name}/{self.name}"


IMAGENET = Script(
    "imagenet",
    "pytorch/examples",
    "77f55b912142e11fcfdf5b530231fb9c52f181e8",
    "imagenet/main.py",
    ("torchvision",),
)
WORD_LM = Script(
    "word-lm",
    "pytorch/examples",
    "77f55b912142e11fcfdf5b530231fb9c52f181e8",
    "word_language_model/main.py",
    cwd="word_language_model",
    pythonpath="word_language_model",
)
TIMM = Script(
    "timm",
    "huggingface/pytorch-image-models",
    "aa4b5850c1543fa488abf260f18390eda46cf85d",
    "train.py",
    ("torchvision", "yaml", "safetensors", "huggingface_hub"),
)
NANOGPT = Script("nanogpt", "karpathy/nanoGPT", "3adf61e154c3fe3fca428ad6bc3818b27a3b8291", "train.py")
MINGPT = Script("mingpt", "karpathy/minGPT", "37baab71b9abea1b76ab957409a1cc2fbfba8a26", "projects/adder/adder.py")
MAKEMORE = Script(
    "makemore", "karpathy/makemore", "988aa59e4d8fefa526d06f3b453ad116258398d4", "makemore.py", ("tensorboard",)
)
TRAINER = Script(
    "hf-trainer",
    "huggingface/transformers",
    "d56c55bf564ddb176759eb6ec199442682564916",
    "examples/pytorch/language-modeling/run_clm.py",
    ("transformers", "datasets", "evaluate", "accelerate"),
)
ACCELERATE = Script(
    "hf-accelerate",
    "huggingface/transformers",
    "d56c55bf564ddb176759eb6ec199442682564916",
    "examples/pytorch/text-classification/run_glue_no_trainer.py",
    ("transformers", "datasets", "evaluate", "accelerate"),
)
LIGHTNING = Script(
    "lightning",
    "Lightning-AI/pytorch-lightning",
    "7f0c3436cd3f6ad3753125672024fc415cbcb414",
    "examples/pytorch/basics/transformer.py",
    ("lightning", "requests"),
)
FABRIC = Script(
    "fabric",
    "Lightning-AI/pytorch-lightning",
    "7f0c3436cd3f6ad3753125672024fc415cbcb414",
    "examples/fabric/language_model/train.py",
    ("lightning", "requests"),
)
TORCHVISION = Script(
    "torchvision",
    "pytorch/vision",
    "e6f04004f0e0f759b44329d9ee6751a55abf0f83",
    "references/classification/train.py",
    ("torchvision",),
    pythonpath="references/classification",
)
WEBDATASET = Script(
    "webdataset",
    "webdataset/webdataset",
    "e0953f9bba17b416d5792d5a263b171c266e78be",
    "examples/train-resnet50-wds.ipynb",
    ("torchvision", "webdataset"),
)

DATA: dict[str, Maker] = {
    "characters": synthetic.characters,
    "tokens": partial(synthetic.characters, tokens=10_000_000),
    "words": synthetic.words,
    "text": partial(synthetic.sentences, lines=10_500),
    "language-model": synthetic.language_model,
    "classification": synthetic.classification,
    "photos": partial(synthetic.image_folder, train=4000, height=333, width=500, links=10),
    "large-photos": partial(synthetic.image_folder, train=800, height=1500, width=2250, links=20),
    "thumbnails": partial(synthetic.image_folder, train=4000, height=72, width=96, links=10),
    "shards": partial(synthetic.image_shards, shards=32, per_shard=200, height=333, width=500),
    "thumbnail-shards": partial(synthetic.image_shards, shards=32, per_shard=200, height=72, width=96),
}
"""The maker of each name of data; `links` is how many names every image file gets, for long epochs."""

LOADING = ("no_overlap", "too_few_workers", "decode_bound")


def _workers(args: str, option: str, now: int, then: int, causes: tuple[str, ...]) -> Alternative:
    return Alternative(f"{then} workers", causes, args.replace(f"{option}{now} ", f"{option}{then} "))


def _with_workers(
    script: Script, name: str, args: str, option: str, now: int, then: int, data: str, *, gpu: bool = False
) -> Setting:
    """Return a setting with two alternatives: another number of workers, and data for free.

    Without workers the cause is that; with fewer than the machine has cores, their number; else the work itself.
    """
    given = f"{args} {option}{now} "
    few = ("no_overlap",) if now == 0 else ("too_few_workers",)
    rest = few if now == 0 else ("too_few_workers", "decode_bound")
    more = _workers(given, option, now, then, few)
    return Setting(script, name, given, data, (more, Alternative("cached", rest, cached=True)), gpu=gpu)


NANO = "--dataset=synth --device=cpu --compile=False --eval_interval=1000000 --eval_iters=1 --max_iters=1000000 "
NANO_GPU = "--dataset=synth --eval_interval=1000000 --eval_iters=1 --max_iters=1000000 --gradient_accumulation_steps=1 "
ADDER = "--data.ndigit=1 --trainer.max_iters=1000000 --trainer.device=cpu --model.model_type="
NAMES = "--input-file {data}/names.txt --work-dir {out} --max-steps 1000000 "
CLM = (
    "--train_file {data}/train.txt --validation_file {data}/valid.txt --per_device_train_batch_size 8 --block_size 64 "
    "--output_dir {out} --num_train_epochs 100 "
)
GLUE = (
    "--train_file {data}/train.csv --validation_file {data}/valid.csv --max_length 64 --output_dir {out} "
    "--num_train_epochs 100"
)
CLM_TRAINER = CLM + "--do_train --use_cpu --report_to none --logging_steps 50 --save_strategy no "

CPU_SETTINGS = (
    Setting(
        NANOGPT,
        "tiny",
        NANO + "--block_size=64 --batch_size=12 --n_layer=2 --n_head=2 --n_embd=64 --gradient_accumulation_steps=1",
        "characters",
    ),
    Setting(
        NANOGPT,
        "larger",
        NANO + "--block_size=128 --batch_size=8 --n_layer=4 --n_head=4 --n_embd=192 --gradient_accumulation_steps=2",
        "characters",
    ),
    *(
        _with_workers(MINGPT, f"{model}-{now}-workers", ADDER + model, "--trainer.num_workers=", now, then, "")
        for model, now, then in (
            ("gpt-nano", 0, 2),
            ("gpt-nano", 1, 2),
            ("gpt-nano", 4, 8),
            ("gpt-mini", 0, 2),
            ("gpt-mini", 2, 4),
        )
    ),
    *(
        _with_workers(MAKEMORE, f"{kind}-{now}-workers", f"{NAMES}{args}", "--num-workers ", now, then, "words")
        for kind, args, now, then in (
            ("bow", "--type bow --n-embd 32", 0, 2),
            ("mlp", "--type mlp --batch-size 128", 0, 2),
            ("mlp", "--type mlp --batch-size 128", 1, 2),
            ("mlp", "--type mlp --batch-size 128", 4, 8),
            ("gru", "--type gru --batch-size 256", 2, 4),
            ("transformer", "--type transformer", 0, 2),
            ("transformer", "--type transformer --n-embd 128", 2, 4),
        )
    ),
    *(
        _with_workers(
            TRAINER,
            f"{model}-{now}-workers",
            f"{CLM_TRAINER} --config_name {{data}}/{model} --tokenizer_name {{data}}/{model}",
            "--dataloader_num_workers ",
            now,
            then,
            "language-model",
        )
        for model, now, then in (("model", 0, 2), ("model", 2, 4), ("large", 0, 2))
    ),
    *(
        Setting(
            ACCELERATE,
            f"bert-{size}",
            f"{GLUE} --model_name_or_path {{data}}/{size} --per_device_train_batch_size {batch}",
            "classification",
            (Alternative("cached", ("no_overlap",), cached=True),),
        )
        for size, batch in (("small", 32), ("large", 8))
    ),
    Setting(LIGHTNING, "transformer", "", "text", (Alternative("cached", ("no_overlap",), cached=True),)),
    Setting(FABRIC, "transformer", "", "text", (Alternative("cached", ("no_overlap",), cached=True),)),
    Setting(WORD_LM, "lstm", "--data {data} --use-optimizer --epochs 100 --emsize 64 --nhid 64", "text"),
    Setting(
        WORD_LM, "transformer", "--data {data} --use-optimizer --epochs 100 --model Transformer --emsize 64", "text"
    ),
)

MAIN = "--epochs 50 -p 20 --dist-url tcp://127.0.0.1:29511 "
TIMM_ARGS = (
    "--data-dir {data} --train-split train --val-split val --num-classes 10 --output {out} --epochs 50 "
    "--log-interval 20 "
)
REFERENCE = "--data-path {data} --epochs 50 --output-dir {out} --print-freq 20 "


def _images(
    script: Script,
    name: str,
    args: str,
    option: str,
    now: int,
    then: int,
    data: str = "photos",
    *,
    more: tuple[Alternative, ...] = (),
    in_use: tuple[str, ...] = (),
    slow_open_ms: float = 0,
) -> Setting:
    found = _with_workers(script, name, args, option, now, then, data, gpu=True)
    alternatives = (*found.alternatives, *more)
    if slow_open_ms:
        late = ("latency_bound", "small_files", "too_few_workers")
        alternatives = (Alternative("cached", late, cached=True),)
    return Setting(script, name, found.args, data, alternatives, in_use, True, slow_open_ms)


def _pinned(args: str) -> tuple[Alternative, ...]:
    return (Alternative("--pin-mem", ("pageable_copy",), f"{args} --pin-mem"),)


AMP = ("autocast", "amp", "bfloat16", "mixed")
TIMM_18 = f"{TIMM_ARGS} --model resnet18 --amp -b 256"
TIMM_50 = f"{TIMM_ARGS} --model resnet50 --amp --channels-last -b 256"
GPU_SETTINGS = (
    _images(TIMM, "resnet18-16", TIMM_18, "-j ", 16, 32, in_use=AMP, more=_pinned(f"{TIMM_18} -j 16")),
    _images(
        TIMM, "resnet50-16", TIMM_50, "-j ", 16, 32, in_use=(*AMP, "channels_last"), more=_pinned(f"{TIMM_50} -j 16")
    ),
    _images(IMAGENET, "resnet18-16", f"{{data}} {MAIN} -a resnet18 -b 256", "-j ", 16, 32, in_use=("pin_memory",)),
    _images(IMAGENET, "resnet50-2", f"{{data}} {MAIN} -a resnet50 -b 128", "-j ", 2, 16, in_use=("pin_memory",)),
    _images(
        TORCHVISION,
        "resnet18-16",
        f"{REFERENCE} --model resnet18 -b 128 --amp",
        "-j ",
        16,
        32,
        in_use=(*AMP, "pin_memory"),
    ),
    Setting(
        WEBDATASET,
        "resnet50",
        "",
        "shards",
        (Alternative("cached", ("decode_bound", "too_few_workers"), cached=True),),
        gpu=True,
    ),
    Setting(
        NANOGPT,
        "gpu",
        NANO_GPU + "--compile=False --block_size=512 --n_layer=6 --n_head=6 --n_embd=384",
        "tokens",
        gpu=True,
    ),
    _images(IMAGENET, "resnet18-0", f"{{data}} {MAIN} -a resnet18 -b 64", "-j ", 0, 16, in_use=("pin_memory",)),
    _images(
        IMAGENET,
        "large-photos",
        f"{{data}} {MAIN} -a resnet50 -b 128",
        "-j ",
        16,
        32,
        "large-photos",
        in_use=("pin_memory",),
    ),
    _images(
        TIMM,
        "vit-heavy",
        f"{TIMM_ARGS} --model vit_tiny_patch16_224 --amp -b 128 --aa rand-m9-mstd0.5",
        "-j ",
        16,
        32,
        in_use=AMP,
    ),
    _images(TIMM, "resnet50-4", TIMM_50, "-j ", 4, 16, in_use=(*AMP, "channels_last")),
    _images(
        TORCHVISION,
        "vit-large",
        f"{REFERENCE} --model vit_l_16 -b 64 --amp",
        "-j ",
        16,
        32,
        in_use=(*AMP, "pin_memory"),
    ),
    _images(
        IMAGENET,
        "slow-files",
        f"{{data}} {MAIN} -a resnet18 -b 128",
        "-j ",
        8,
        16,
        slow_open_ms=20,
        in_use=("pin_memory",),
    ),
    Setting(
        MAKEMORE,
        "gpu",
        f"{NAMES} --device cuda --num-workers 4",
        "words",
        (Alternative("cached", LOADING, cached=True),),
        gpu=True,
    ),
    _images(
        TORCHVISION,
        "heavy-2",
        f"{REFERENCE} --model resnet18 -b 128 --auto-augment ta_wide",
        "-j ",
        2,
        16,
        in_use=("pin_memory",),
    ),
    _images(
        IMAGENET,
        "thumbnails",
        f"{{data}} {MAIN} -a resnet50 -b 128",
        "-j ",
        16,
        32,
        "thumbnails",
        in_use=("pin_memory",),
    ),
    _images(TIMM, "convnext", f"{TIMM_ARGS} --model convnext_base --amp -b 128", "-j ", 16, 32, in_use=AMP),
    _images(TIMM, "large-photos", TIMM_18, "-j ", 16, 32, "large-photos", in_use=AMP),
    Setting(
        WEBDATASET,
        "thumbnails",
        "",
        "thumbnail-shards",
        (Alternative("cached", ("decode_bound", "too_few_workers"), cached=True),),
        gpu=True,
    ),
    _with_workers(
        MINGPT,
        "gpu-0-workers",
        "--data.ndigit=1 --trainer.max_iters=1000000 --model.model_type=gpt-mini",
        "--trainer.num_workers=",
        0,
        4,
        "",
        gpu=True,
    ),
    Setting(LIGHTNING, "gpu", "", "text", (Alternative("cached", ("no_overlap",), cached=True),), gpu=True),
)

SETTINGS = CPU_SETTINGS + GPU_SETTINGS
