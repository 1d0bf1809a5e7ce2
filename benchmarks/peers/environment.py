"""Makes the peers' virtual environment: `python -m benchmarks.peers.environment`, or `make peers`.

It is outside the repository, in the user's cache or in the folder that $PENSTOCK_PEERS names. A peer that cannot be
installed is left out, and the reason is recorded.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.core.user_cache import cache_dir

ROOT = Path(__file__).parents[2]
VERSIONS = Path(__file__).with_name("requirements.txt")


@dataclass(frozen=True)
class Peer:
    """The packages of one peer."""

    packages: tuple[str, ...]
    alone: tuple[str, ...] = ()
    """Packages installed without their requirements: those have no wheel (torchvision for torch without CUDA) or
    are not used here (clients of cloud services)."""


PEERS = {
    "webdataset": Peer(("webdataset",)),
    "spdl": Peer(("spdl", "av")),  # av brings the FFmpeg libraries that spdl needs and lacks
    "dali": Peer(("nvidia-dali-cuda130",)),
    "litdata": Peer(("lightning-utilities", "boto3", "requests", "tifffile", "obstore"), alone=("litdata",)),
    "mosaic": Peer(
        ("boto3", "requests", "tqdm", "xxhash", "zstd", "brotli", "python-snappy", "catalogue"),
        alone=("mosaicml-streaming",),
    ),
}


@dataclass(frozen=True)
class Environment:
    """A virtual environment that is complete."""

    folder: Path
    absent: dict[str, str]
    """The peers that could not be installed, with pip's reason."""

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def variables(self) -> dict[str, str]:
        """Return the environment variables of this process, with the folders of FFmpeg's libraries added."""
        folders = [str(self.folder / "ffmpeg"), *map(str, _bundled_libraries(self.folder))]
        inherited = os.environ.get("LD_LIBRARY_PATH")
        return {**os.environ, "LD_LIBRARY_PATH": ":".join([*folders, inherited] if inherited else folders)}


def ensure() -> Environment:
    """Return the environment; install it if it is missing or was installed from other packages or versions."""
    chosen = os.environ.get("PENSTOCK_PEERS")
    folder = Path(chosen).expanduser().absolute() if chosen else cache_dir("peers")
    record = folder / "installed.json"
    required = hashlib.sha256(f"{ROOT} {PEERS} {VERSIONS.read_text()}".encode()).hexdigest()
    if record.exists():
        installed = json.loads(record.read_text())
        if installed["wanted"] == required:
            return Environment(folder, installed["absent"])
    absent = _install(folder)
    record.write_text(json.dumps({"wanted": required, "absent": absent}, indent=2))
    return Environment(folder, absent)


def run_comparison(module: str, options: Sequence[str]) -> bytes:
    """Run a module that compares loaders in the peers' environment and return the JSON it writes to its `--out`.

    The environment is made if it is missing. The module is also given the peers that could not be installed.
    """
    environment = ensure()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "results.json"
        arguments = ["--out", str(out), "--absent", json.dumps(environment.absent), *options]
        command = [str(environment.python), "-m", module, *arguments]
        subprocess.run(command, check=True, cwd=ROOT, env=environment.variables())
        return out.read_bytes()


def pinned() -> dict[str, str]:
    """Return the pinned version of every package."""
    lines = (line.partition("==") for line in VERSIONS.read_text().splitlines())
    return {name: version for name, _, version in lines if version}


def _install(folder: Path) -> dict[str, str]:
    """Install Penstock, torch and the peers; return the peers that could not be installed, with pip's last error.

    Without Penstock or torch the environment is of no use: a failure of one of them ends the program.
    """
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    for packages in (["-U", "pip"], ["torch"], ["-e", str(ROOT)]):
        failure = _pip(folder, *packages)
        if failure:
            raise SystemExit(f"cannot make the peers' environment: {failure}")
    absent = {}
    for name, peer in PEERS.items():
        print(f"installing {name}", file=sys.stderr)
        failure = _pip(folder, *peer.packages) or (_pip(folder, "--no-deps", *peer.alone) if peer.alone else None)
        if failure:
            absent[name] = failure
    _link_ffmpeg(folder)
    return absent


def _pip(folder: Path, *arguments: str) -> str | None:
    """Run `pip install`; return its last error, or None if it succeeded."""
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "-c", str(VERSIONS), *arguments]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return (errors or ["pip failed"])[-1] if done.returncode else None


def _link_ffmpeg(folder: Path) -> None:
    """Link `libavutil-5809ad29.so.60.26.102`, as av's wheel names it, as `libavutil.so.60`, which SPDL searches for."""
    links = folder / "ffmpeg"
    links.mkdir(exist_ok=True)
    for libraries in _bundled_libraries(folder):
        for library in libraries.glob("lib*.so.*"):
            name = re.match(r"(lib(?:av|sw)\w+)-[0-9a-f]+(\.so\.\d+)", library.name)
            if name:
                link = links / "".join(name.groups())
                link.unlink(missing_ok=True)
                link.symlink_to(library)


def _bundled_libraries(folder: Path) -> list[Path]:
    return sorted(folder.glob("lib/python*/site-packages/av.libs"))


def main() -> None:
    """Make the environment and print the peers that it lacks."""
    environment = ensure()
    print(environment.folder)
    for name, reason in environment.absent.items():
        print(f"absent: {name}: {reason}")


if __name__ == "__main__":
    main()
