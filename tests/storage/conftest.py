"""Fixtures: a fake /sys, tmpfs mounts (as root), and a cache folder for each test."""

import os
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _own_cache_folder(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path_factory.mktemp("penstock-cache")))


class SysTree:
    """A folder with block devices as /sys shows them."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def disk(self, name, number, rotational=None, *, slaves=(), **files):
        folder = self.root / "devices" / "x" / "block" / name
        self._register(folder, name, number)
        if rotational is not None:
            self._write(folder, {"queue/rotational": str(rotational)})
        self._write(folder, {path.replace("__", "/"): text for path, text in files.items()})
        for slave in slaves:
            (folder / "slaves").mkdir(exist_ok=True)
            (folder / "slaves" / slave).symlink_to(self.root / "class" / "block" / slave)

    def partition(self, disk, name, number):
        folder = self.root / "devices" / "x" / "block" / disk / name
        self._register(folder, name, number)
        self._write(folder, {"partition": "1"})

    def _register(self, folder, name, number):
        self._write(folder, {"dev": f"{number}\n"})
        for link in (self.root / "dev" / "block" / number, self.root / "class" / "block" / name):
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(folder)

    def _write(self, folder, files):
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)


@pytest.fixture
def sys_tree(tmp_path):
    return SysTree(tmp_path / "sys")


@contextmanager
def _tmpfs(folder, options):
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True, capture_output=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def mount_tmpfs(tmp_path):
    """A function that mounts a tmpfs with the given options; the test is skipped where that is not allowed."""
    from contextlib import ExitStack

    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("only root can mount a small or read-only filesystem")
    with ExitStack() as stack:

        def mount(name, options):
            folder = tmp_path / name
            folder.mkdir()
            try:
                return stack.enter_context(_tmpfs(folder, options))
            except (OSError, subprocess.CalledProcessError):
                pytest.skip("this machine does not allow a tmpfs to be mounted")

        yield mount
