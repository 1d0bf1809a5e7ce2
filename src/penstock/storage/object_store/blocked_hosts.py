"""Which servers are never spoken to, whatever a URL or the environment says."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

from penstock.errors import SettingError

_METADATA = ("metadata.google.internal", "metadata.goog")
_METADATA_V6 = ipaddress.ip_network("fd00:ec2::/32")
_METADATA_V4 = frozenset(map(ipaddress.IPv4Address, ("100.100.100.200", "168.63.129.16", "192.0.0.192")))
"""Alibaba's, Azure's and Oracle's, which are not link-local."""
_WITH_V4_INSIDE = tuple(map(ipaddress.IPv6Network, ("::/96", "64:ff9b::/96")))
"""The last four bytes are an IPv4 address that a gateway may lead to: the old compatible ones, and NAT64."""


def refuse_forbidden(address: str) -> None:
    """A link-local address is not a store but, in clouds, the service that hands out the machine's credentials."""
    host = urlsplit(address).hostname or ""
    if host.rstrip(".").lower() in _METADATA or any(map(_forbidden, _addresses(host))):
        raise SettingError(f"{host} is a link-local or metadata address, and never read", stage="open")


def _addresses(host: str) -> list[str]:
    """All it resolves to, odd spellings of numbers too; none where names are not known here but to a proxy."""
    try:
        return [str(entry[4][0]) for entry in socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)]
    except (OSError, UnicodeError):
        return []


def _forbidden(text: str) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv4Address):
        return _forbidden_v4(address)
    return address.is_link_local or address in _METADATA_V6 or any(map(_forbidden_v4, _inside(address)))


def _forbidden_v4(address: ipaddress.IPv4Address) -> bool:
    return address.is_link_local or address in _METADATA_V4


def _inside(address: ipaddress.IPv6Address) -> Iterator[ipaddress.IPv4Address]:
    """The IPv4 addresses that one of IPv6 may stand for."""
    yield from filter(None, (address.ipv4_mapped, address.sixtofour))
    if any(address in network for network in _WITH_V4_INSIDE):
        yield ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
