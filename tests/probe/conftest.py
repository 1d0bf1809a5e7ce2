"""Fixtures of the storage tests that the storage probe's tests use too."""

from tests.storage.conftest import mount_tmpfs  # noqa: F401
