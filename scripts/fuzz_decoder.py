"""Fuzz the compiled decoder: build it with clang's AddressSanitizer and UndefinedBehaviorSanitizer, and run libFuzzer.

    python scripts/fuzz_decoder.py /tmp/fuzz --runs 10000000 --libjpeg ~/src/libjpeg-turbo

`--libjpeg` names a source tree of libjpeg-turbo (2.1 or newer), which is then built under AddressSanitizer too, without
assembler code, whose accesses no sanitizer sees. Without it, the system's library is used, and only the accesses of
Penstock's own code are checked. Needs clang, and cmake for `--libjpeg`.

The runs are done in chunks, each with a seed of its own; what a chunk has found new is the corpus of the next ones. The
script ends at the first input that crashes, hangs or gives another result when it is decoded again, and names its file.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
SANITIZERS = "address,undefined"
REQUEST_BYTES = 16
"""Bytes before the JPEG in each input; see native/fuzz.c."""
REQUESTS_PER_IMAGE = 4
MAX_INPUT_BYTES = 4096
MAX_SECONDS_PER_INPUT = 20


def main() -> int:
    """Build what is missing, run the chunks, and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("folder", type=Path, help="where the program, the corpus and what it finds are kept")
    parser.add_argument("--runs", type=int, default=1_000_000, help="damaged JPEGs in all [default: %(default)s]")
    parser.add_argument(
        "--chunk",
        type=int,
        default=500_000,
        help="inputs with one seed [default: %(default)s]",
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the first chunk [default: %(default)s]")
    parser.add_argument("--libjpeg", type=Path, metavar="DIR", help="source tree of libjpeg-turbo")
    arguments = parser.parse_args()
    folder: Path = arguments.folder.resolve()
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    program = build(folder, arguments.libjpeg)
    if not any(corpus.iterdir()):
        write_corpus(corpus)
    done = 0
    for seed in range(arguments.seed, sys.maxsize):
        if done >= arguments.runs:
            break
        counts = run_chunk(program, corpus, folder, seed, arguments.chunk)
        if counts is None:
            return 1
        given, decoded = counts
        done += given
        print(f"seed {seed}: {given:,} JPEGs ({decoded:,} decoded), {done:,} in all, nothing found", flush=True)
    return 0


def build(folder: Path, libjpeg: Path | None) -> Path:
    """Return the program, built anew."""
    flags = ["-g", "-O1", "-fno-omit-frame-pointer", "-std=c11"]
    if libjpeg is None:
        library = ["-ljpeg"]
    else:
        built = folder / "libjpeg"
        instrumented = f"-g -O1 -fsanitize=address,fuzzer-no-link -I{libjpeg.resolve()}"
        settings = ["-DCMAKE_C_COMPILER=clang", f"-DCMAKE_C_FLAGS={instrumented}", "-DCMAKE_BUILD_TYPE=None"]
        settings += ["-DWITH_SIMD=0", "-DENABLE_SHARED=0", "-DWITH_TURBOJPEG=0"]
        if not (built / "libjpeg.a").exists():
            run(["cmake", "-S", str(libjpeg), "-B", str(built), *settings])
            run(["cmake", "--build", str(built), "--target", "jpeg-static", "-j2"])
        sources = [path for path in (libjpeg, libjpeg / "src") if (path / "jpeglib.h").exists()]
        flags += [f"-I{path}" for path in (built, *sources)]
        library = [str(built / "libjpeg.a")]
    program = folder / "fuzz"
    code = [str(ROOT / "native" / name) for name in ("fuzz.c", "jpeg_window.c")]
    undefined = ["-fno-sanitize-recover=undefined"]
    run(["clang", *flags, f"-fsanitize={SANITIZERS},fuzzer", *undefined, *code, *library, "-lm", "-o", str(program)])
    return program


def run(command: list[str]) -> None:
    """Run a command silently; show its output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def run_chunk(program: Path, corpus: Path, folder: Path, seed: int, runs: int) -> tuple[int, int] | None:
    """Return how many JPEGs the decoder was given and how many it decoded; None if an input failed."""
    options = [f"-runs={runs}", f"-seed={seed}", f"-max_len={MAX_INPUT_BYTES}", f"-timeout={MAX_SECONDS_PER_INPUT}"]
    options += [f"-artifact_prefix={folder}/found-", "-mutate_depth=1", "-entropic=0", "-rss_limit_mb=2048"]
    log = folder / f"chunk-{seed}.log"
    with log.open("w") as output:
        status = subprocess.run([program, corpus, *options], stderr=output, stdout=output, check=False).returncode
    text = log.read_text(errors="replace")
    found = re.search(r"JPEGs given: (\d+), decoded: (\d+)", text)
    if status or found is None:
        print(f"seed {seed}: an input failed; see {log}\n{text[-3000:]}", flush=True)
        return None
    return int(found[1]), int(found[2])


def write_corpus(folder: Path) -> None:
    """Write small JPEGs of all common kinds, each with some random requests."""
    rng = np.random.default_rng(0)
    for number, jpeg in enumerate(sample_jpegs(rng)):
        for request in range(REQUESTS_PER_IMAGE):
            (folder / f"{number}-{request}").write_bytes(rng.bytes(REQUEST_BYTES) + jpeg)


def sample_jpegs(rng: np.random.Generator) -> Iterator[bytes]:
    """Yield JPEGs with smooth and with noisy content, of various sizes, samplings, and orders of coefficients."""
    sides = ((1, 1), (7, 5), (8, 8), (17, 16), (31, 33), (40, 24), (64, 48), (3, 90))
    for (height, width), mode, sampling in product(sides, ("RGB", "L", "CMYK"), (0, 1, 2)):
        if mode == "L" and sampling:
            continue
        coarse = rng.integers(0, 256, (-(-height // 8), -(-width // 8), len(Image.new(mode, (1, 1)).getbands())))
        pixels = np.kron(coarse, np.ones((8, 8, 1), int))[:height, :width]
        pixels = np.clip(pixels + rng.integers(-20, 20, pixels.shape), 0, 255).astype(np.uint8)
        image = Image.fromarray(pixels if mode != "L" else pixels[:, :, 0], mode)
        for settings in ({}, {"progressive": True}, {"restart_marker_blocks": 2}, {"quality": 30, "optimize": True}):
            buffer = io.BytesIO()
            image.save(buffer, "JPEG", **({"quality": 75, "subsampling": sampling} | settings))
            if len(buffer.getvalue()) + REQUEST_BYTES <= MAX_INPUT_BYTES:
                yield buffer.getvalue()


if __name__ == "__main__":
    sys.exit(main())
