"""What every test gets."""

import hypothesis
import pytest

hypothesis.settings.register_profile("penstock", deadline=None)  # time is not what our tests are about
hypothesis.settings.load_profile("penstock")


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory, monkeypatch):
    """Index files and probe results go to a folder of the test's own, never to the user's."""
    folder = tmp_path_factory.mktemp("penstock-cache")
    monkeypatch.setenv("PENSTOCK_CACHE", str(folder))
    return folder
