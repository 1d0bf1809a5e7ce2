"""An HTTP proxy that injects the failures of a network or a server between a client and a local HTTP server.

server.py      FaultProxy: accepts connections and forwards requests
state.py       ProxyState: the injected faults and the counts, shared by the threads of the proxy
faults.py      the faults: one class for each kind of failure
messages.py    Request and Response
upstream.py    the connection to the server behind the proxy
throttle.py    a bandwidth limit that all connections share
"""

from __future__ import annotations

from tests.support.proxy.faults import Cut, Drip, Flip, Hang, Late, ResponseFault, Status, WholeObject, WrongRange
from tests.support.proxy.messages import Request, Response
from tests.support.proxy.server import FaultProxy
from tests.support.proxy.state import Counts

__all__ = [
    "Counts",
    "Cut",
    "Drip",
    "FaultProxy",
    "Flip",
    "Hang",
    "Late",
    "Request",
    "Response",
    "ResponseFault",
    "Status",
    "WholeObject",
    "WrongRange",
]
