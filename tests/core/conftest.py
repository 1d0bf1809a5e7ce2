"""Cgroups that a test builds."""

import pytest


@pytest.fixture
def tree(tmp_path):
    """Writes the files of a made-up /sys/fs/cgroup, and /proc/self/cgroup."""

    def tree(membership, files):
        for name, text in files.items():
            path = tmp_path / "sys" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
        (tmp_path / "cgroup").write_text(membership + "\n")
        return tmp_path / "sys", tmp_path / "cgroup"

    return tree
