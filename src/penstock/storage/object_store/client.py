"""The obstore clients of this process: one per bucket, configured from the environment.

`get_store` creates and caches them; `renew_store` discards one whose credentials were refused. Addresses where clouds
serve a machine's credentials are refused before a client is created for them.
"""

from __future__ import annotations

import importlib
import ipaddress
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from penstock.errors import SettingError
from penstock.storage.object_store.url import RemoteUrl, is_loopback

_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_CONNECT_TIMEOUT = timedelta(seconds=5)
_REQUEST_TIMEOUT = timedelta(minutes=10)
"""Longer than any request takes: a stalled request is recognised by its bytes per second instead (`request.py`)."""

_DEAD_PROXY = "http://127.0.0.1:1"
"""A proxy that does not exist, set for all hosts but one, so that redirects to other hosts fail.

obstore follows redirects and has no setting against it. From https it follows to https only, which the services that
serve a machine's credentials do not speak."""

_ADVICE = {
    "S3Store": "Check the AWS_… variables in the environment",
    "GCSStore": "Check the GOOGLE_… variables in the environment, and that the files they name exist",
    "AzureStore": "Set AZURE_STORAGE_ACCOUNT_NAME, and check the AZURE_… variables in the environment",
    "HTTPStore": "Check the address",
}

MIN_RENEWAL_AGE_S = 60.0
"""Seconds. A younger client has read the current content of the files that credentials may come from."""

_stores: dict[tuple[str, ...], _OpenStore] = {}
_lock = threading.Lock()


def import_obstore() -> Any:
    """Import obstore; only code that handles URLs calls this, so that local training does not need the package."""
    try:
        return importlib.import_module("obstore")
    except ImportError:
        raise SettingError(
            "object stores are read through obstore, which is not installed",
            advice="Install it: pip install 'penstock[s3]'",
        ) from None


@dataclass(frozen=True, slots=True)
class _OpenStore:
    """A client, and what decides whether creating it anew could help."""

    store: Any
    created_s: float
    environment_digest: int
    """Hash of the environment variables that it may have been configured from."""


def get_store(url: RemoteUrl) -> Any:
    """Return the client for an object's bucket, created on first use."""
    key = _store_key(url)
    with _lock:
        opened = _stores.get(key)
    if opened is None:
        digest = _environment_digest()
        # Creating a client may resolve a name, so it happens outside the lock.
        opened = _OpenStore(_FACTORIES[url.scheme](url), time.monotonic(), digest)
        with _lock:
            opened = _stores.setdefault(key, opened)
    return opened.store


def renew_store(url: RemoteUrl, refused: Any) -> bool:
    """Discard a refused client, so that the next one is configured anew; return whether this call discarded it.

    Discarding a client loses its pool of connections, and some buckets refuse one request per shard (writing an index,
    or asking for a key that does not exist). So a client that would be created with the same settings stays.
    """
    with _lock:
        opened = _stores.get(_store_key(url))
        if opened is None or opened.store is not refused:
            return False
        unchanged = opened.environment_digest == _environment_digest()
        if unchanged and time.monotonic() - opened.created_s < MIN_RENEWAL_AGE_S:
            return False
        del _stores[_store_key(url)]
        return True


def _environment_digest() -> int:
    return hash(frozenset(item for item in os.environ.items() if item[0].startswith(("AWS_", "AZURE_", "GOOGLE_"))))


def path_in_store(url: RemoteUrl) -> str:
    """Return the object's path below its client; empty for a signed address, whose client is the whole address."""
    return "" if url.is_web and url.query else url.object_path


def _store_key(url: RemoteUrl) -> tuple[str, ...]:
    if url.is_web:
        return (str(url), url.query) if url.query else (url.scheme, url.bucket)
    return url.scheme, url.bucket, _endpoint() or ""


def endpoint_without_credentials() -> str:
    """Return the server that replaces S3's own, without any credentials in its address; empty if there is none."""
    address = urlsplit(_endpoint() or "")
    return f"{address.scheme}://{address.netloc.rpartition('@')[2]}" if address.netloc else ""


def _endpoint() -> str | None:
    return next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), None)


def _create_store(
    kind: str, location: str, *, allow_http: bool = False, only_host: str | None = None, **settings: Any
) -> Any:
    """Create a client; with `only_host`, requests to any other host fail."""
    import_obstore()  # raises the error that names the package to install
    factory = getattr(importlib.import_module("obstore.store"), kind)
    options: dict[str, Any] = {"connect_timeout": _CONNECT_TIMEOUT, "timeout": _REQUEST_TIMEOUT}
    options["allow_http"] = allow_http
    if only_host is not None:
        options |= {"proxy_url": _DEAD_PROXY, "proxy_excludes": only_host}
    try:
        # Retries are made by `request.py`: those of obstore neither resume nor are counted.
        return factory(location, client_options=options, retry_config={"max_retries": 0}, **settings)
    except Exception as error:
        name = type(error).__name__
    # Raised outside the except block: obstore's error may repeat the environment or a signed address.
    raise SettingError(f"the store cannot be set up ({kind}: {name})", stage="open", advice=_ADVICE[kind])


def _s3(url: RemoteUrl) -> Any:
    endpoint = _endpoint()
    if endpoint is None:
        return _create_store("S3Store", url.bucket)
    refuse_blocked_host(endpoint)
    return _create_store("S3Store", url.bucket, allow_http=endpoint.startswith("http://"), endpoint=endpoint)


def _gs(url: RemoteUrl) -> Any:
    return _create_store("GCSStore", url.bucket, allow_http=_allow_plain_http(("GOOGLE_BASE_URL",)))


def _az(url: RemoteUrl) -> Any:
    variables = "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "AZURITE_BLOB_STORAGE_URL"
    return _create_store("AzureStore", url.bucket, allow_http=_allow_plain_http(variables))


def _allow_plain_http(variables: tuple[str, ...]) -> bool:
    """Return whether one of the variables replaces the cloud's server by one of this machine; refuse blocked hosts."""
    addresses = [os.environ[name] for name in variables if os.environ.get(name)]
    for address in addresses:
        refuse_blocked_host(address)
    return any(each.startswith("http://") and is_loopback(urlsplit(each).netloc) for each in addresses)


def _web(url: RemoteUrl) -> Any:
    server = f"{url.scheme}://{url.bucket}"
    refuse_blocked_host(server)
    address = f"{url}?{url.query}" if url.query else server
    plain = url.scheme == "http"  # `parse_url` accepts http for this machine only
    return _create_store("HTTPStore", address, allow_http=plain, only_host=urlsplit(server).hostname if plain else None)


_FACTORIES: dict[str, Callable[[RemoteUrl], Any]] = {"s3": _s3, "gs": _gs, "az": _az, "https": _web, "http": _web}


# -- hosts that are never read, whatever a URL or the environment names --------------------------------------------

_METADATA_NAMES = ("metadata.google.internal", "metadata.goog")
_METADATA_IPV6 = ipaddress.ip_network("fd00:ec2::/32")
_METADATA_IPV4 = frozenset(map(ipaddress.IPv4Address, ("100.100.100.200", "168.63.129.16", "192.0.0.192")))
"""The metadata services of Alibaba, Azure and Oracle, whose addresses are not link-local."""
_IPV4_IN_IPV6 = tuple(map(ipaddress.IPv6Network, ("::/96", "64:ff9b::/96")))
"""Networks whose last four bytes are an IPv4 address that a gateway may reach: IPv4-compatible addresses and NAT64."""


def refuse_blocked_host(address: str) -> None:
    """Raise SettingError for a link-local or metadata address.

    In clouds such an address is not a store but the service that serves the machine's credentials.
    """
    host = urlsplit(address).hostname or ""
    if host.rstrip(".").lower() in _METADATA_NAMES or any(map(_is_blocked, _addresses(host))):
        raise SettingError(f"{host} is a link-local or metadata address, and never read", stage="open")


def _addresses(host: str) -> list[str]:
    """Return all addresses the host resolves to, unusual number notations included; none if only a proxy knows it."""
    try:
        return [str(entry[4][0]) for entry in socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)]
    except (OSError, UnicodeError):
        return []


def _is_blocked(text: str) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv4Address):
        return _is_blocked_ipv4(address)
    return address.is_link_local or address in _METADATA_IPV6 or any(map(_is_blocked_ipv4, _embedded_ipv4(address)))


def _is_blocked_ipv4(address: ipaddress.IPv4Address) -> bool:
    return address.is_link_local or address in _METADATA_IPV4


def _embedded_ipv4(address: ipaddress.IPv6Address) -> Iterator[ipaddress.IPv4Address]:
    """Yield the IPv4 addresses that an IPv6 address may stand for."""
    yield from filter(None, (address.ipv4_mapped, address.sixtofour))
    if any(address in network for network in _IPV4_IN_IPV6):
        yield ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
