"""The state that the threads of the proxy share: the faults to inject, and counts of requests and bytes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.support.proxy.faults import ResponseFault
from tests.support.proxy.messages import Request

Predicate = Callable[[Request], bool]


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts since the proxy was started."""

    requests: int = 0
    bytes: int = 0
    """Bytes of bodies that were sent to clients."""
    faults: int = 0
    """Requests with a fault."""
    in_flight: int = 0
    """Requests whose last byte has not been sent yet."""
    most_in_flight: int = 0


@dataclass(slots=True)
class Rule:
    """A fault, the requests that get it, and how many more times."""

    fault: ResponseFault
    when: Predicate
    times_left: int | None
    """None: there is no limit."""


class ProxyState:
    """Rules and counts. Bytes are counted before they are sent, so that the counts include all that a client has."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._counts = Counts()
        self._requests: list[Request] = []
        self._attempts: Counter[tuple[str, str, str | None]] = Counter()
        self._rules: list[Rule] = []

    def add_rule(self, rule: Rule) -> None:
        """Add a rule, which is tried after the present ones."""
        with self._changed:
            self._rules.append(rule)

    def remove_rules(self) -> None:
        """Remove all rules."""
        with self._changed:
            self._rules.clear()

    def begin(self, method: str, path: str, byte_range: str | None) -> tuple[Request, ResponseFault]:
        """Count a request that has come; return it with the fault of the first rule that applies to it."""
        with self._changed:
            attempt = method, path, byte_range
            self._attempts[attempt] += 1
            request = Request(method, path, byte_range, len(self._requests) + 1, self._attempts[attempt])
            self._requests.append(request)
            in_flight = self._counts.in_flight + 1
            self._add_counts(requests=1, in_flight=1)
            self._counts = replace(self._counts, most_in_flight=max(self._counts.most_in_flight, in_flight))
            return request, self._fault_for(request)

    def _fault_for(self, request: Request) -> ResponseFault:
        for rule in self._rules:
            if rule.times_left != 0 and rule.fault.applies_to(request) and rule.when(request):
                rule.times_left = None if rule.times_left is None else rule.times_left - 1
                self._add_counts(faults=1)
                return rule.fault
        return ResponseFault()

    def count_body_bytes(self, count: int) -> None:
        """Count bytes of a body that are about to be sent."""
        with self._changed:
            self._add_counts(bytes=count)

    def end(self) -> None:
        """Count a request as no longer in flight."""
        with self._changed:
            self._add_counts(in_flight=-1)

    def _add_counts(self, **more: int) -> None:
        self._counts = replace(self._counts, **{name: getattr(self._counts, name) + add for name, add in more.items()})
        self._changed.notify_all()

    @property
    def counts(self) -> Counts:
        """The present counts."""
        with self._changed:
            return self._counts

    @property
    def requests(self) -> list[Request]:
        """All requests in the order in which they came."""
        with self._changed:
            return list(self._requests)

    def wait_until(self, condition: Callable[[Counts], bool], timeout_s: float) -> Counts:
        """Wait until the condition holds for the counts, and return them; raise TimeoutError after the timeout."""
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self._counts), timeout_s):
                raise TimeoutError(f"after {timeout_s:g} s still {self._counts}")
            return self._counts
