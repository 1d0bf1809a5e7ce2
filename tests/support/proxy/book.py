"""What the proxy has seen and which of its rules come into play: all that its threads share."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from penstock.core.clock import SYSTEM_CLOCK, Clock
from tests.support.proxy.faults import Fault
from tests.support.proxy.messages import Request

When = Callable[[Request], bool]


@dataclass(frozen=True, slots=True)
class Counts:
    """Up to now."""

    requests: int = 0
    bytes: int = 0
    """Of bodies, sent to clients."""
    faults: int = 0
    in_flight: int = 0
    """Requests that came and whose last byte has not been sent."""
    most_in_flight: int = 0


@dataclass(slots=True)
class Rule:
    """A fault, whom it strikes, and how often yet."""

    fault: Fault
    when: When
    left: int | None
    """None: every time."""


class Book:
    """Rules and counts. Clients see nothing that is not in the counts yet: they change before bytes are sent."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._counts = Counts()
        self._requests: list[Request] = []
        self._attempts: Counter[tuple[str, str, str | None]] = Counter()
        self._rules: list[Rule] = []

    def add_rule(self, rule: Rule) -> None:
        """After those there are."""
        with self._changed:
            self._rules.append(rule)

    def drop_rules(self) -> None:
        """All of them."""
        with self._changed:
            self._rules.clear()

    def begin(self, method: str, path: str, asked_range: str | None) -> tuple[Request, Fault]:
        """A request has come: it is counted, and the first rule that it suits decides."""
        with self._changed:
            same = method, path, asked_range
            self._attempts[same] += 1
            request = Request(method, path, asked_range, len(self._requests) + 1, self._attempts[same])
            self._requests.append(request)
            in_flight = self._counts.in_flight + 1
            self._count(requests=1, in_flight=1)
            self._counts = replace(self._counts, most_in_flight=max(self._counts.most_in_flight, in_flight))
            return request, self._struck(request)

    def _struck(self, request: Request) -> Fault:
        for rule in self._rules:
            if rule.left != 0 and rule.fault.suits(request) and rule.when(request):
                rule.left = None if rule.left is None else rule.left - 1
                self._count(faults=1)
                return rule.fault
        return Fault()

    def sending(self, count: int) -> None:
        """So many bytes of a body are about to go."""
        with self._changed:
            self._count(bytes=count)

    def end(self) -> None:
        """A request is in flight no longer."""
        with self._changed:
            self._count(in_flight=-1)

    def _count(self, **more: int) -> None:
        self._counts = replace(self._counts, **{name: getattr(self._counts, name) + add for name, add in more.items()})
        self._changed.notify_all()

    @property
    def counts(self) -> Counts:
        """At this moment."""
        with self._changed:
            return self._counts

    @property
    def requests(self) -> list[Request]:
        """All of them, in the order in which they came."""
        with self._changed:
            return list(self._requests)

    def wait_until(self, true: Callable[[Counts], bool], timeout_s: float) -> Counts:
        """Returns as soon as the counts are so."""
        with self._changed:
            if not self._changed.wait_for(lambda: true(self._counts), timeout_s):
                raise TimeoutError(f"after {timeout_s:g} s still {self._counts}")
            return self._counts


class Throttle:
    """A bandwidth that all connections share."""

    def __init__(self, bytes_per_s: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._free_s = clock.now()
        self._lock = threading.Lock()

    def delay_s(self, count: int) -> float:
        """How long from now until so many bytes are through, behind all that were asked about before."""
        with self._lock:
            now = self._clock.now()
            self._free_s = max(now, self._free_s) + count / self._bytes_per_s
            return self._free_s - now
