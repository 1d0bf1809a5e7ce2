"""What `--ray` means to the commands that take it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from penstock.cli import console
from penstock.shards.cluster.join import join_cluster
from penstock.shards.cluster.ray_runner import RayRunner
from penstock.shards.task_pool import use_task_runner
from penstock.storage.object_store.url import is_remote

Ray = Annotated[
    str | None,
    typer.Option(
        metavar="[ADDRESS]",
        help="Run on a Ray cluster: HOST:PORT, or auto (as without an address) for the one this machine is in, or "
        "local for a new one here. "
        "All its nodes must see the same folders.",
    ),
]


class RayMayStandAlone(TyperCommand):
    """Lets `--ray` stand without an address, at the end or before another option: auto is meant then."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As ever, with the word that was left out."""
        said: list[str] = []
        for arg, after in zip(args, [*args[1:], "-"], strict=True):
            said += [arg, "auto"] if arg == "--ray" and after.startswith("-") else [arg]
        return super().parse_args(ctx, said)


@contextmanager
def tasks_on(ray: str | None, workers: int | None = None) -> Iterator[list[str]]:
    """Where tasks run within: there, or on this machine. Files that all nodes must see go into the list."""
    if ray is None:
        yield []
        return
    with join_cluster(ray, workers) as cluster:
        said = f"on Ray at {cluster.address}, nodes: {cluster.nodes}, cores: {cluster.cpus}"
        console.notices.print(said, markup=False, highlight=False)
        runner = RayRunner(cluster)
        with use_task_runner(runner):
            yield runner.shared_files


def seen_from_all(path: str, ray: str | None) -> str:
    """The path as other machines must write it."""
    return path if ray is None or is_remote(path) else os.path.join(os.getcwd(), path)
