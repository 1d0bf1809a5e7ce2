"""Which servers are never spoken to, whatever a URL or the environment says."""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import urlsplit

from penstock.errors import SettingError

_METADATA = ("metadata.google.internal", "metadata.goog")
_METADATA_V6 = ipaddress.ip_network("fd00:ec2::/32")


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
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped.is_link_local
        return address.is_link_local or address in _METADATA_V6
    return address.is_link_local
