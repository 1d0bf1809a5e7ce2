"""The stores that this process speaks to: one for each bucket, made of what the environment says."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from penstock.errors import SettingError
from penstock.storage.remote.gate import refuse_forbidden
from penstock.storage.remote.url import RemoteUrl

_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_CONNECT = timedelta(seconds=5)
_WHOLE = timedelta(minutes=10)
"""No limit of ours: a request that stalls is noticed by its bytes per second (`fetch.py`)."""

_stores: dict[tuple[str, ...], Any] = {}
_lock = threading.Lock()


def obstore() -> Any:
    """The library; imported only where a URL is used."""
    try:
        return importlib.import_module("obstore")
    except ImportError:
        raise SettingError(
            "object stores are read through obstore, which is not installed",
            advice="Install it: pip install 'penstock[s3]'",
        ) from None


def store_of(url: RemoteUrl) -> Any:
    """The store that has the object."""
    name = _name(url)
    with _lock:
        store = _stores.get(name)
    if store is None:
        store = _MAKERS[url.scheme](url)  # may resolve a name: not under the lock
        with _lock:
            store = _stores.setdefault(name, store)
    return store


def renew(url: RemoteUrl, refused: Any) -> None:
    """Make the store anew, with what the environment says now, unless somebody has done so already."""
    with _lock:
        if _stores.get(_name(url)) is refused:
            del _stores[_name(url)]


def path_in_store(url: RemoteUrl) -> str:
    """What the store calls the object: of a signed address the store is the whole address."""
    return "" if url.web and url.query else url.object_path


def _name(url: RemoteUrl) -> tuple[str, ...]:
    if url.web:
        return (str(url), url.query) if url.query else (url.scheme, url.bucket)
    return url.scheme, url.bucket, _endpoint() or ""


def _endpoint() -> str | None:
    return next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), None)


def _made(kind: str, place: str, *, allow_http: bool = False, **settings: Any) -> Any:
    obstore()  # says what to install, if need be
    make = getattr(importlib.import_module("obstore.store"), kind)
    options = {"connect_timeout": _CONNECT, "timeout": _WHOLE, "allow_http": allow_http}
    # Failures are for us to judge: its own retries would not resume, nor tell.
    return make(place, client_options=options, retry_config={"max_retries": 0}, **settings)


def _s3(url: RemoteUrl) -> Any:
    endpoint = _endpoint()
    if endpoint is None:
        return _made("S3Store", url.bucket)
    refuse_forbidden(endpoint)
    return _made("S3Store", url.bucket, allow_http=endpoint.startswith("http://"), endpoint=endpoint)


def _gs(url: RemoteUrl) -> Any:
    return _made("GCSStore", url.bucket)


def _az(url: RemoteUrl) -> Any:
    return _made("AzureStore", url.bucket)


def _web(url: RemoteUrl) -> Any:
    base = f"{url.scheme}://{url.bucket}"
    refuse_forbidden(base)
    address = f"{url}?{url.query}" if url.query else base
    return _made("HTTPStore", address, allow_http=url.scheme == "http")


_MAKERS: dict[str, Callable[[RemoteUrl], Any]] = {"s3": _s3, "gs": _gs, "az": _az, "https": _web, "http": _web}
