"""The option `--ray` of the commands whose work can run on a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from penstock.cli import console
from penstock.cli.help import Command
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


class OptionalRayAddress(Command):
    """A command whose `--ray` may lack an address, at the end or before another option: auto is inserted then."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the missing address, then parse the arguments."""
        complete: list[str] = []
        for argument, next_argument in zip(args, [*args[1:], "-"], strict=True):
            complete.append(argument)
            if argument == "--ray" and next_argument.startswith("-"):
                complete.append("auto")
        return super().parse_args(ctx, complete)


@contextmanager
def tasks_on(ray: str | None, workers: int | None = None) -> Iterator[list[str]]:
    """Run the tasks of the block on the cluster, or on this machine if `ray` is None.

    The block adds the files that all nodes must see to the list that it gets.
    """
    if ray is None:
        yield []
        return
    with join_cluster(ray, workers) as cluster:
        console.print_notice(f"on Ray at {cluster.address}, nodes: {cluster.nodes}, cores: {cluster.cpus}")
        runner = RayRunner(cluster)
        with use_task_runner(runner):
            yield runner.shared_files


def cluster_path(path: str, ray: str | None) -> str:
    """Return the path as other machines must write it: an absolute one, if a cluster does the work."""
    return path if ray is None or is_remote(path) else os.path.join(os.getcwd(), path)
