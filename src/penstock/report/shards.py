"""`penstock shards ls`, `check` and `pack`: tables, lines of text and JSON documents about shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.table import Table

from penstock.core.format import format_bytes
from penstock.report.text import table
from penstock.shards.check import ShardFlaw, ShardStructure
from penstock.shards.codecs.by_suffix import codec_of
from penstock.shards.index import ShardIndex
from penstock.shards.pack.manifest import FieldFact, PackedShard
from penstock.shards.pack.plan import PackPlan
from penstock.shards.pairing import RequiredPart, alternatives, canonical_suffix
from penstock.shards.tar import IGNORED
from penstock.shards.validate import ShardHealth, ShardProblem

MAX_ROWS = 20
"""Most rows of a table and most flaws that a terminal shows; --json lists them all."""
MAX_NAMED_CLASSES = 5
"""Most class names in a line."""

MAX_NAMES = 4
"""Most ignored members of a kind that a line names."""

# -- ls ------------------------------------------------------------------------------------------------------------


@dataclass
class PartSummary:
    """All parts with one suffix."""

    codec: str
    count: int = 0
    size_bytes: int = 0
    smallest_bytes: int | None = None
    largest_bytes: int = 0


@dataclass(frozen=True)
class ShardSummary:
    """The facts about one shard."""

    shard: str
    samples: int
    parts: int
    size_bytes: int
    compression: str | None
    has_crcs: bool
    whole: int
    """Samples with every part, once, and not empty."""
    problems: dict[str, int]
    """Number of problems by their kind."""
    ignored: list[IgnoredMember]


@dataclass(frozen=True, slots=True)
class IgnoredMember:
    """A member that belongs to no sample, such as a directory."""

    member: str
    offset: int
    what: str


@dataclass
class Listing:
    """The result of `shards ls`: every shard, every kind of part, and the sums."""

    shards: list[ShardSummary] = field(default_factory=list)
    parts: dict[str, PartSummary] = field(default_factory=dict)
    joined: dict[str, int] = field(default_factory=dict)
    """Suffixes that inference made by joining names to samples, with the number of names."""
    unreadable: list[dict[str, str]] = field(default_factory=list)

    @property
    def samples(self) -> int:
        """Samples in all readable shards, complete or not."""
        return sum(shard.samples for shard in self.shards)

    @property
    def whole(self) -> int:
        """Samples with every part, once, and not empty."""
        return sum(shard.whole for shard in self.shards)

    @property
    def healthy(self) -> bool:
        """Whether every shard is readable and none has a problem."""
        return not self.unreadable and not any(shard.problems for shard in self.shards)

    def add(self, shard: str, index: ShardIndex, health: ShardHealth, stated: Sequence[RequiredPart] = ()) -> None:
        """Add a shard that is paired by the stated suffixes."""
        self.shards.append(
            ShardSummary(
                shard,
                samples=len(index),
                parts=index.part_count,
                size_bytes=index.binding.size,
                compression=index.compression,
                has_crcs=index.crcs is not None,
                whole=int(health.complete.sum()),
                problems=dict(Counter(problem.kind for problem in health.problems)),
                ignored=[
                    IgnoredMember(name, offset, what.removeprefix(IGNORED))
                    for name, offset, what in index.other_members
                    if what.startswith(IGNORED)
                ],
            )
        )
        stated_suffixes = {canonical_suffix(suffix) for part in stated for suffix in alternatives(part)}
        for number, suffix in enumerate(index.suffixes):
            _add_sizes(self.parts.setdefault(suffix, PartSummary(codec_of(suffix))), index, number)
            if not suffix.startswith(".") and canonical_suffix(suffix) not in stated_suffixes:
                self.joined[suffix] = self.joined.get(suffix, 0) + int((index.suffix_ids == number).sum())


def _add_sizes(summary: PartSummary, index: ShardIndex, suffix_id: int) -> None:
    sizes = index.lengths[index.suffix_ids == suffix_id]
    if not len(sizes):
        return
    summary.count += len(sizes)
    summary.size_bytes += int(sizes.sum())
    smallest = int(sizes.min())
    summary.smallest_bytes = smallest if summary.smallest_bytes is None else min(smallest, summary.smallest_bytes)
    summary.largest_bytes = max(summary.largest_bytes, int(np.max(sizes)))


def listing_document(listing: Listing) -> dict[str, Any]:
    """Return the listing as plain values for JSON."""
    return {**msgspec.to_builtins(listing), "samples": listing.samples, "whole": listing.whole}


def listing_shards(listing: Listing) -> Table:
    """Return the table of the shards."""
    rows = [
        (
            shard.shard,
            f"{shard.samples:,}",
            f"{shard.parts:,}",
            format_bytes(shard.size_bytes),
            problem_text(shard.problems.items()),
        )
        for shard in listing.shards[:MAX_ROWS]
    ]
    numbers = ("samples", "parts", "bytes")
    return table(f"{len(listing.shards)} shards", ("shard", *numbers, "problems"), rows, right=numbers)


def listing_parts(listing: Listing) -> Table:
    """Return the table of the kinds of parts, the largest total size first."""
    parts = sorted(listing.parts.items(), key=lambda item: -item[1].size_bytes)
    rows = [
        (
            suffix or "(none)",
            part.codec,
            f"{part.count:,}",
            format_bytes(part.size_bytes),
            format_bytes(part.smallest_bytes or 0),
            format_bytes(part.size_bytes / part.count),
            format_bytes(part.largest_bytes),
        )
        for suffix, part in parts
        if part.count
    ]
    numbers = ("parts", "bytes", "smallest", "mean", "largest")
    return table("parts", ("suffix", "codec", *numbers), rows[:MAX_ROWS], right=numbers)


def listing_lines(listing: Listing) -> Iterator[str]:
    """Yield the lines after the tables: shards that could not be read, and the sums."""
    for broken in listing.unreadable:
        yield f"unreadable: {broken['reason']}"
    for suffix, count in sorted(listing.joined.items(), key=lambda item: -item[1])[:MAX_ROWS]:
        yield f"joined: {count:,} members in {suffix} are read as parts of the sample that their name begins with"
    yield from _ignored_lines(listing)
    yield from (f"no samples: {shard.shard}" for shard in listing.shards[:MAX_ROWS] if not shard.samples)
    yield f"{listing.samples:,} samples, {listing.whole:,} of them whole"


def _ignored_lines(listing: Listing) -> Iterator[str]:
    """Yield a line for each kind of ignored members, with the first names."""
    names: dict[str, list[str]] = {}
    for shard in listing.shards:
        for ignored in shard.ignored:
            names.setdefault(ignored.what, []).append(ignored.member)
    for what, of_kind in names.items():
        more = ", …" if len(of_kind) > MAX_NAMES else ""
        yield f"ignored, {what}: {len(of_kind):,} ({', '.join(of_kind[:MAX_NAMES])}{more})"


def problem_text(problems: Iterable[tuple[str, int]]) -> str:
    """Return the problems with their numbers: `2 orphan, 1 duplicate`, or `none`."""
    return ", ".join(f"{count} {kind}" for kind, count in problems) or "none"


def more_lines(count: int) -> Iterator[str]:
    """Yield a line if a table of `count` rows was cut."""
    if count > MAX_ROWS:
        yield f"… and {count - MAX_ROWS} more (--json lists them all)"


# -- check ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of `shards check`."""

    structures: Sequence[ShardStructure]
    flaws: Sequence[ShardFlaw]
    quarantine: Path
    """The file that lists the flaws, if there are any."""
    decoded: bool
    """Whether every part was decoded too."""

    @property
    def samples(self) -> int:
        """Samples in all shards."""
        return sum(structure.samples for structure in self.structures)


def check_document(result: CheckResult) -> dict[str, object]:
    """Return the result as plain values for JSON."""
    return {
        "shards": [asdict(structure) for structure in result.structures],
        "samples": result.samples,
        "flaws": [asdict(flaw) for flaw in result.flaws],
        "quarantine": str(result.quarantine) if result.flaws else None,
    }


def checked_shards(result: CheckResult) -> Table:
    """Return the table of the shards, those with most flaws first."""
    flaws = Counter(flaw.shard for flaw in result.flaws)
    rows = [
        (
            structure.shard,
            f"{structure.samples:,}",
            format_bytes(structure.size_bytes),
            _checks(structure, result.decoded),
            str(flaws[structure.shard]),
        )
        for structure in sorted(result.structures, key=lambda structure: -flaws[structure.shard])[:MAX_ROWS]
    ]
    columns = ("shard", "samples", "bytes", "checked", "flaws")
    return table(f"{len(result.structures)} shards", columns, rows, right=("samples", "bytes", "flaws"))


def check_lines(result: CheckResult) -> Iterator[str]:
    """Yield the lines after the table: the first flaws, and the sums."""
    for flaw in result.flaws[:MAX_ROWS]:
        place = " ".join(str(value) for value in (flaw.shard, flaw.member, flaw.offset) if value is not None)
        yield f"{flaw.kind}: {flaw.reason} [{place}]"
    if len(result.flaws) > MAX_ROWS:
        yield f"… and {len(result.flaws) - MAX_ROWS} more"
    notes = [(structure.shard, note) for structure in result.structures for note in structure.notes]
    yield from (f"note: {note} [{shard}]" for shard, note in notes[:MAX_ROWS])
    if len(notes) > MAX_ROWS:
        yield f"… and {len(notes) - MAX_ROWS} more notes"
    verdict = f"{len(result.flaws)} flaws, listed in {result.quarantine}" if result.flaws else "no flaws"
    yield f"{result.samples:,} samples checked: {verdict}"


def _checks(structure: ShardStructure, decoded: bool) -> str:
    checks = ["structure", "pairs"]
    if structure.with_crc:
        checks.append("CRC32")
    if decoded:
        checks.append("decoded")
    return ", ".join(checks)


# -- pack ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PackResult:
    """The result of `shards pack`."""

    plan: PackPlan
    shards: Sequence[PackedShard]
    left_out: Sequence[ShardProblem]
    """Samples that were left out before packing, because the source lacks a part of them."""
    reason: str
    """Why the arrays are stored with this codec."""

    @property
    def samples(self) -> int:
        """Packed samples."""
        return sum(shard.samples for shard in self.shards)

    @property
    def skipped(self) -> int:
        """Samples that were left out during packing."""
        return sum(len(shard.skipped) for shard in self.shards)

    @property
    def size_bytes(self) -> int:
        """Size of all packed shards."""
        return sum(shard.size_bytes for shard in self.shards)


def pack_plan_document(plan: PackPlan, reason: str) -> dict[str, Any]:
    """Return what a pack would write as plain values for JSON."""
    return {
        "samples": plan.samples,
        "shards": len(plan.shards),
        "bytes_in": plan.source_bytes,
        "bytes_out_estimate": _estimated_bytes(plan),
        "arrays": plan.options.arrays,
        "reason": reason,
        "keys_prefixed": plan.prefix_keys,
        **_source_document(plan),
    }


def _source_document(plan: PackPlan) -> dict[str, Any]:
    """Return how the source is read as plain values for JSON."""
    reader = plan.sources[0].reader
    columns = {} if reader is None else {column.name: column.suffix for column in reader.columns}
    classes = {name: len(names) for name, names in plan.class_files.items()}
    return {"files": len(plan.sources), "columns": columns, "classes": classes}


def pack_source_lines(plan: PackPlan) -> Iterator[str]:
    """Yield how the source is read: the part that each column becomes, and where labels come from."""
    reader = plan.sources[0].reader
    if reader is not None:
        yield f"source: {reader.format_name}, files: {len(plan.sources):,}"
    for column in () if reader is None else reader.columns:
        suffix = column.suffix + (".jpg, .png, …" if column.role == "image" else "")
        yield f"column {column.name}: {column.role}, stored as {suffix}"
    for name, classes in plan.class_files.items():
        origin = f"of {len(classes):,} folders" if reader is None else f"of {len(classes):,} classes"
        shown = ", ".join(classes[:MAX_NAMED_CLASSES]) + (", …" if len(classes) > MAX_NAMED_CLASSES else "")
        yield f"labels: numbers {origin}, listed in {name}: {shown}"


def pack_plan_table(plan: PackPlan) -> Table:
    """Return what a pack would write as a table."""
    rows = [
        ("samples", f"{plan.samples:,}"),
        ("shards", f"{len(plan.shards):,}"),
        ("bytes now", format_bytes(plan.source_bytes)),
        ("bytes then", f"about {format_bytes(_estimated_bytes(plan))}"),
        ("keys", "prefixed with the source's name, since sources share keys" if plan.prefix_keys else "as they are"),
    ]
    return table("plan (nothing written)", ("what", "how much"), rows)


def _estimated_bytes(plan: PackPlan) -> int:
    return int(plan.source_bytes * plan.size_ratio)


def packed_document(result: PackResult) -> dict[str, Any]:
    """Return the result as plain values for JSON."""
    return {
        "samples": result.samples,
        "skipped": result.skipped,
        "left_out_before_packing": [asdict(problem) for problem in result.left_out],
        "bytes_in": result.plan.source_bytes,
        "bytes_out": result.size_bytes,
        "arrays": result.plan.options.arrays,
        "reason": result.reason,
        "shards": [{"name": shard.name, "samples": shard.samples} for shard in result.shards],
        **_source_document(result.plan),
    }


def packed_table(result: PackResult) -> Table:
    """Return the parts of the packed shards, the largest total size first."""
    parts: dict[str, FieldFact] = {}
    for shard in result.shards:
        for suffix, fact in shard.fields.items():
            if suffix in parts:
                parts[suffix].merge(fact)
            else:
                parts[suffix] = msgspec.structs.replace(fact)
    rows = [
        (suffix, fact.codec, fact.dtype or "", "×".join(map(str, fact.shape or ())), format_bytes(fact.size_bytes))
        for suffix, fact in sorted(parts.items(), key=lambda item: -item[1].size_bytes)
    ]
    return table("packed", ("part", "codec", "dtype", "shape", "bytes"), rows, right=("bytes",))


def packed_line(result: PackResult) -> str:
    """Return the sums in one line."""
    problems = result.skipped + len(result.left_out)
    line = (
        f"{result.samples:,} samples in {len(result.shards)} shards: {format_bytes(result.plan.source_bytes)} became "
        f"{format_bytes(result.size_bytes)}"
    )
    return f"{line}; {problems} problems, see the quarantine file" if problems else line
