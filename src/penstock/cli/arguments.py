"""Arguments that several commands take, said once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Shards = Annotated[
    list[str],
    typer.Argument(help="Shards: files, folders, globs, ranges like 's-{000..127}.tar' (quoted), or URLs of these."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
Require = Annotated[
    list[str] | None,
    typer.Option(help="A suffix every sample must have, e.g. _cam.jpg; tells how names split, too (may be repeated)."),
]
Workers = Annotated[int | None, typer.Option(min=1, help="Worker processes; all usable cores if not given.")]
Quarantine = Annotated[
    Path, typer.Option(metavar="FILE", help="Where flaws are listed, as JSON lines; written only if there are any.")
]
QUARANTINE = Path("quarantine.jsonl")
