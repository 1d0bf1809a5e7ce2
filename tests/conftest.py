"""What every test gets."""

import pytest


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory, monkeypatch):
    """Index files and probe results go to a folder of the test's own, never to the user's."""
    folder = tmp_path_factory.mktemp("penstock-cache")
    monkeypatch.setenv("PENSTOCK_CACHE", str(folder))
    return folder
