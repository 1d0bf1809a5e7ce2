"""Where a proposal is put together: what each change gives on top of those before it, and whether it is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from penstock.core.plan import Change
from penstock.plan.scenario import Scenario

LEAST_GAIN = 0.02
"""Less is not worth a change: runs differ by more."""


@dataclass(kw_only=True)
class ProposalBuilder:
    """Where a proposal is put together, one knob after the other."""

    now: Scenario
    then: Scenario
    """With all that is proposed so far."""
    pinned: frozenset[str]
    changes: list[Change] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def offer(
        self,
        name: str,
        values: tuple[Any, Any],
        edit: Callable[[Scenario], Scenario],
        reason: str,
        *,
        cost: str = "",
        least: float = LEAST_GAIN,
        for_memory: bool = False,
    ) -> None:
        """Take it if it gains enough on top of what is proposed already, or saves memory that must be saved."""
        now, then = values
        after = edit(self.then)
        more = after.gain_over(self.then)
        if not after.allowed(self.now):
            self.notes.append(f"{name}: {then} would not fit into memory")
        elif more < least and not for_memory:
            self.notes.append(f"{name}: leave it at {now}; {then} would give {more:+.1%}")
        elif name in self.pinned:
            self.notes.append(f"{name} is pinned to {now}; {then} would give {more:+.0%}: {reason}")
        else:
            alone = edit(self.now).gain_over(self.now)
            gain = alone if alone >= least or for_memory else more
            self.then = after
            self.changes.append(
                Change(scope="dataloader", name=name, now=now, then=then, reason=reason, gain=gain, cost=cost)
            )
