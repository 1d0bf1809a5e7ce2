"""The stores that this process speaks to: one for each bucket, made of what the environment says."""

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
"""No limit of ours: a request that stalls is noticed by its bytes per second (`fetch.py`)."""

_DEAD_PROXY = "http://127.0.0.1:1"
"""A proxy that is not there, for all hosts but one: the library follows redirects, and has no other way to be told not
to. From https it goes to https only, which the service that hands out a machine's credentials does not speak."""

_ADVICE = {
    "S3Store": "See whether the AWS_… variables in the environment are what they should be",
    "GCSStore": "See whether the GOOGLE_… variables in the environment are what they should be and name files",
    "AzureStore": "Set AZURE_STORAGE_ACCOUNT_NAME; see whether the AZURE_… variables are what they should be",
    "HTTPStore": "See whether the address is one",
}

MIN_RENEWAL_AGE_S = 60.0
"""A store that is younger has seen the files that credentials may come from."""

_stores: dict[tuple[str, ...], _OpenStore] = {}
_lock = threading.Lock()


def import_obstore() -> Any:
    """The library; imported only where a URL is used."""
    try:
        return importlib.import_module("obstore")
    except ImportError:
        raise SettingError(
            "object stores are read through obstore, which is not installed",
            advice="Install it: pip install 'penstock[s3]'",
        ) from None


@dataclass(frozen=True, slots=True)
class _OpenStore:
    store: Any
    at_s: float
    told: int
    """A digest of the variables that it may have been made of."""


def get_store(url: RemoteUrl) -> Any:
    """The store that has the object."""
    name = _store_key(url)
    with _lock:
        made = _stores.get(name)
    if made is None:
        told = _environment_digest()
        made = _OpenStore(_FACTORIES[url.scheme](url), time.monotonic(), told)  # may resolve a name: not under the lock
        with _lock:
            made = _stores.setdefault(name, made)
    return made.store


def renew_store(url: RemoteUrl, refused: Any) -> bool:
    """Have the store made anew, of what the environment says now; whether it will be, by this call.

    With it goes its pool of connections, and where a bucket may not be written, or a key that is not there not be asked
    for, there is a refusal for every shard. So a store that would come out as it was is left alone.
    """
    with _lock:
        made = _stores.get(_store_key(url))
        if made is None or made.store is not refused:
            return False
        if made.told == _environment_digest() and time.monotonic() - made.at_s < MIN_RENEWAL_AGE_S:
            return False
        del _stores[_store_key(url)]
        return True


def _environment_digest() -> int:
    return hash(frozenset(item for item in os.environ.items() if item[0].startswith(("AWS_", "AZURE_", "GOOGLE_"))))


def path_in_store(url: RemoteUrl) -> str:
    """What the store calls the object: of a signed address the store is the whole address."""
    return "" if url.is_web and url.query else url.object_path


def _store_key(url: RemoteUrl) -> tuple[str, ...]:
    if url.is_web:
        return (str(url), url.query) if url.query else (url.scheme, url.bucket)
    return url.scheme, url.bucket, _endpoint() or ""


def endpoint_without_credentials() -> str:
    """Which server stands in for S3's own, without what somebody may have put into its address; empty for none."""
    address = urlsplit(_endpoint() or "")
    return f"{address.scheme}://{address.netloc.rpartition('@')[2]}" if address.netloc else ""


def _endpoint() -> str | None:
    return next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), None)


def _create_store(kind: str, place: str, *, allow_http: bool = False, only: str | None = None, **settings: Any) -> Any:
    """With `only`, no other host is spoken to."""
    import_obstore()  # says what to install, if need be
    make = getattr(importlib.import_module("obstore.store"), kind)
    options: dict[str, Any] = {
        "connect_timeout": _CONNECT_TIMEOUT,
        "timeout": _REQUEST_TIMEOUT,
        "allow_http": allow_http,
    }
    if only is not None:
        options |= {"proxy_url": _DEAD_PROXY, "proxy_excludes": only}
    try:
        # Failures are for us to judge: its own retries would not resume, nor tell.
        return make(place, client_options=options, retry_config={"max_retries": 0}, **settings)
    except Exception as error:
        name = type(error).__name__
    # Not while the library's error is handled: it may repeat what is in the environment, or in a signed address.
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
    stand_ins = "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "AZURITE_BLOB_STORAGE_URL"
    return _create_store("AzureStore", url.bucket, allow_http=_allow_plain_http(stand_ins))


def _allow_plain_http(names: tuple[str, ...]) -> bool:
    """Whether a server of this machine stands in for the cloud's own; one that must not be spoken to is refused."""
    addresses = [os.environ[name] for name in names if os.environ.get(name)]
    for address in addresses:
        refuse_blocked_host(address)
    return any(each.startswith("http://") and is_loopback(urlsplit(each).netloc) for each in addresses)


def _web(url: RemoteUrl) -> Any:
    base = f"{url.scheme}://{url.bucket}"
    refuse_blocked_host(base)
    address = f"{url}?{url.query}" if url.query else base
    plain = url.scheme == "http"  # which is for this machine only
    return _create_store("HTTPStore", address, allow_http=plain, only=urlsplit(base).hostname if plain else None)


_FACTORIES: dict[str, Callable[[RemoteUrl], Any]] = {"s3": _s3, "gs": _gs, "az": _az, "https": _web, "http": _web}


_METADATA_NAMES = ("metadata.google.internal", "metadata.goog")
_METADATA_IPV6 = ipaddress.ip_network("fd00:ec2::/32")
_METADATA_IPV4 = frozenset(map(ipaddress.IPv4Address, ("100.100.100.200", "168.63.129.16", "192.0.0.192")))
"""Alibaba's, Azure's and Oracle's, which are not link-local."""
_IPV4_IN_IPV6 = tuple(map(ipaddress.IPv6Network, ("::/96", "64:ff9b::/96")))
"""The last four bytes are an IPv4 address that a gateway may lead to: the old compatible ones, and NAT64."""


def refuse_blocked_host(address: str) -> None:
    """A link-local address is not a store but, in clouds, the service that hands out the machine's credentials."""
    host = urlsplit(address).hostname or ""
    if host.rstrip(".").lower() in _METADATA_NAMES or any(map(_is_blocked, _addresses(host))):
        raise SettingError(f"{host} is a link-local or metadata address, and never read", stage="open")


def _addresses(host: str) -> list[str]:
    """All it resolves to, odd spellings of numbers too; none where names are not known here but to a proxy."""
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
    """The IPv4 addresses that one of IPv6 may stand for."""
    yield from filter(None, (address.ipv4_mapped, address.sixtofour))
    if any(address in network for network in _IPV4_IN_IPV6):
        yield ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
