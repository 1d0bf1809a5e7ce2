"""Tracebacks of failed requests contain none of obstore's messages, which repeat whole addresses."""

import traceback

import pytest
from tests.support.proxy import Cut, Hang, Status, WholeObject

from penstock.errors import PenstockError, SettingError, StorageError
from penstock.storage.object_store import listing, remote_file
from penstock.storage.object_store.remote_file import RemoteFile, read_object, write_object
from penstock.storage.object_store.retry import RetryPolicy
from penstock.storage.paths import expand_shard_paths

SECRET = "hunter2"


@pytest.fixture(autouse=True)
def _short_retries(monkeypatch):
    for module in (remote_file, listing):
        monkeypatch.setattr(module, "DEFAULT_RETRY_POLICY", RetryPolicy(budget_s=0.02, first_pause_s=0.01, stall_s=0.3))


def traceback_of(act, *arguments, error=StorageError):
    """Return the printed error, with all causes and contexts in its chain."""
    with pytest.raises(error) as caught:
        act(*arguments)
    text, error_in_chain = [], caught.value
    while error_in_chain is not None:
        assert isinstance(error_in_chain, PenstockError), f"the chain has a {type(error_in_chain).__name__}"
        text += [*traceback.format_exception(error_in_chain), repr(error_in_chain)]
        error_in_chain = error_in_chain.__cause__ or error_in_chain.__context__
    return "".join(text)


@pytest.mark.parametrize(
    "fault", [Status(503), Status(403), Status(400, "InvalidArgument"), Status(404), Cut(None), Hang(), WholeObject()]
)
def test_no_signature_is_in_the_traceback_of_a_read(bucket, proxy, fault):
    bucket.put("a.tar", bytes(1000))
    [address] = expand_shard_paths(f"{proxy.url}/{bucket.name}/a.tar?X-Amz-Signature={SECRET}")
    file = RemoteFile(address)
    proxy.inject(fault)
    for act, arguments in ((file.read_at, (0, 100)), (RemoteFile, (address,)), (read_object, (address, 10_000))):
        assert SECRET not in traceback_of(act, *arguments)


def test_no_key_is_in_the_traceback_of_a_listing_or_a_write(bucket, proxy):
    proxy.inject(Status(403))
    for text in (traceback_of(expand_shard_paths, bucket.url("d/")), traceback_of(write_object, bucket.url("x"), b"x")):
        assert "AKIAPENSTOCKTESTS" not in text
        assert "access was refused" in text


@pytest.mark.parametrize(
    ("url", "variables"),
    [
        ("az://never-made/a.tar", {}),
        ("az://never-made/a.tar", {"AZURE_STORAGE_ACCOUNT_NAME": "x", "AZURE_STORAGE_ACCOUNT_KEY": f"{SECRET}!"}),
        ("gs://never-made/a.tar", {"GOOGLE_SERVICE_ACCOUNT_KEY": f'{{"private_key": "{SECRET}", "x": {SECRET}}}'}),
        ("s3://never-made/a.tar", {"AWS_SKIP_SIGNATURE": SECRET}),
    ],
    ids=["no account", "an invalid key", "an invalid account", "an invalid switch"],
)
def test_invalid_settings_in_the_environment_raise_an_error_without_secrets(s3, monkeypatch, url, variables):
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_USE_EMULATOR", "GOOGLE_SERVICE_ACCOUNT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    text = traceback_of(RemoteFile, url, error=SettingError)
    assert "the store cannot be set up" in text
    assert SECRET not in text
