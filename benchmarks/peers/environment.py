"""The peers' own virtual environment, outside the tree: `python -m benchmarks.peers.environment`, or `make peers`.

It lies in the user's cache, or where PENSTOCK_PEERS says. What does not install is absent, with the reason.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from penstock.core.user_cache import cache_dir

ROOT = Path(__file__).parents[2]
VERSIONS = Path(__file__).with_name("requirements.txt")


@dataclass(frozen=True)
class Peer:
    packages: tuple[str, ...]
    alone: tuple[str, ...] = ()
    """Installed without what they ask for: it has no wheel (torchvision without CUDA) or is not used here (clouds)."""


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
    folder: Path
    absent: dict[str, str]
    """Peers that did not install, and why."""

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def variables(self) -> dict[str, str]:
        """Those of this process, and where FFmpeg is found."""
        ours = [str(self.folder / "ffmpeg"), *map(str, _bundled_libraries(self.folder))]
        theirs = os.environ.get("LD_LIBRARY_PATH")
        return {**os.environ, "LD_LIBRARY_PATH": ":".join([*ours, theirs] if theirs else ours)}


def ensure() -> Environment:
    """The environment, made if it is not there or not of the versions asked for."""
    chosen = os.environ.get("PENSTOCK_PEERS")
    folder = Path(chosen).expanduser().absolute() if chosen else cache_dir("peers")
    note = folder / "installed.json"
    wanted = hashlib.sha256(f"{ROOT} {PEERS} {VERSIONS.read_text()}".encode()).hexdigest()
    if note.exists():
        found = json.loads(note.read_text())
        if found["wanted"] == wanted:
            return Environment(folder, found["absent"])
    absent = _install(folder)
    note.write_text(json.dumps({"wanted": wanted, "absent": absent}, indent=2))
    return Environment(folder, absent)


def pinned() -> dict[str, str]:
    """Version by package."""
    lines = (line.partition("==") for line in VERSIONS.read_text().splitlines())
    return {name: version for name, _, version in lines if version}


def _install(folder: Path) -> dict[str, str]:
    """Penstock and torch must install; of the peers, those that do not are returned with the last words of pip."""
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
    """Why it failed, or None."""
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "-c", str(VERSIONS), *arguments]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return (errors or ["pip failed"])[-1] if done.returncode else None


def _link_ffmpeg(folder: Path) -> None:
    """`libavutil-5809ad29.so.60.26.102` under the name that loaders look for, `libavutil.so.60`."""
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
    """Make it and say what it lacks."""
    environment = ensure()
    print(environment.folder)
    for name, reason in environment.absent.items():
        print(f"absent: {name}: {reason}")


if __name__ == "__main__":
    main()
