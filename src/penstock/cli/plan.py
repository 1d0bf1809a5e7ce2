"""`penstock plan`: proposes changes to a training, each with its reason and the gain that it should give."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from penstock.cli import console
from penstock.cli.arguments import AsJson, call_factory, need_torch
from penstock.cli.fleet import (
    CacheBandwidth,
    CacheBytes,
    DatasetBytes,
    FleetOptions,
    GpusPerNode,
    Network,
    NodeCores,
    Nodes,
    PriceGb,
    PriceRequests,
    StoreBandwidth,
    StoreRequests,
    print_fleet_plan,
)
from penstock.core.plan import Plan, Profile
from penstock.diagnose.ranks.verdict import most_waiting_rank
from penstock.diagnose.verdict import WAIT_SHARE_HEALTHY, diagnose_run
from penstock.errors import SettingError
from penstock.plan.document import plan_document, save_plan
from penstock.plan.fleet.rank_need import RankNeed, need_from_diagnosis, need_from_probes
from penstock.plan.from_diagnosis import plan_from_diagnosis
from penstock.plan.from_probes import NO_STEP, StepFacts, plan_from_probes
from penstock.probe.results import read_probes
from penstock.probe.step import read_script_probe
from penstock.recording.ranks import load_ranks
from penstock.recording.reader import load
from penstock.report.plan import plan_markdown, plan_text

NOTHING, CHANGES, UNDETERMINED = console.OK, console.FOUND, console.UNDECIDED


def plan(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="RECORDING", help="A recording of `penstock run`, or of `penstock.watch`."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the plan there, as YAML.")
    ] = None,
    profile: Annotated[
        Profile,
        typer.Option(help="speed: the last percent too; memory: as little as possible; balanced: between."),
    ] = "balanced",
    probes: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Plan from what `penstock probe --json` printed.")
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FUNCTION", help="Plan for the dataset, or DataLoader, that FUNCTION returns."),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="With --dataset; a DataLoader has its own.")
    ] = None,
    step_ms: Annotated[
        float | None,
        typer.Option(min=0, metavar="MS", help="With --probes or --dataset: time the device takes for a batch."),
    ] = None,
    nodes: Nodes = None,
    gpus_per_node: GpusPerNode = None,
    node_cores: NodeCores = None,
    network: Network = None,
    store_bandwidth: StoreBandwidth = None,
    store_requests: StoreRequests = None,
    cache_bytes: CacheBytes = None,
    cache_bandwidth: CacheBandwidth = None,
    dataset_bytes: DatasetBytes = None,
    price_gb: PriceGb = None,
    price_requests: PriceRequests = None,
    form: Annotated[Literal["text", "md"], typer.Option("--format", help="How to print the plan.")] = "text",
    as_json: AsJson = False,
) -> None:
    """Propose what to change, with the reason and the predicted gain.

    Reads a recording and simulates the run with other settings: those of
    torch's DataLoader, of penstock.Loader, of the data on disk and of the
    step. Each change comes with its reason and with the gain of this change
    alone; gains do not add up. Where the model cannot predict a gain, it
    says "not known".

        penstock run -o run.jsonl train.py

        penstock plan run.jsonl -o plan.yaml

        penstock verify plan.yaml -- python train.py

    The file can be read and edited: remove what you do not want, then let
    `penstock verify` measure the rest. It is bound to the machine and the
    data of the recording; elsewhere a notice explains the difference.

    Of several ranks, the one that waited most is planned for.

    Before the first run, a plan can be made from probes or from a dataset.
    A recording is then one of `penstock run --probe compute`, which
    contains the time of a step.

        penstock plan --probes probes.json [probe.jsonl]

        penstock plan --dataset mypackage.data:make_dataset --batch-size 64

    From one node to many: what the store, the network, the caches and the
    cores of so many ranks must deliver, which of them binds first, and what
    an epoch costs. All ranks are simulated together; in each step all wait
    for the slowest.

        penstock plan run.jsonl --nodes 128 --gpus-per-node 8

    Exit code: 0 nothing to change (at most things to try in a step that has
    its data in time), 1 changes are proposed, 2 wrong usage or nothing to
    read, 4 the run waits, or is too short, and no change is known for it. With
    --nodes: 0 the GPU's step binds first, 1 something else does, 2 as above.
    """
    for source in (run, probes):
        if source is not None and output is not None and _same_file(output, source):
            raise SettingError(f"{output} is the input of the plan", advice="Name another file with -o")
    _check(run, probes, dataset, batch_size, step_ms)
    fleet = FleetOptions(
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        node_cores=node_cores,
        network=network,
        store_bandwidth=store_bandwidth,
        store_requests=store_requests,
        cache_bytes=cache_bytes,
        cache_bandwidth=cache_bandwidth,
        dataset_bytes=dataset_bytes,
        price_gb=price_gb,
        price_requests=price_requests,
    )
    if fleet.given:
        _check_fleet(dataset, output, profile, form)
    if fleet.given:
        raise typer.Exit(print_fleet_plan(_rank_need(run, probes, step_ms), fleet, as_json=as_json))
    if probes is not None:
        found = plan_from_probes(read_probes(probes), _step(run, step_ms), profile)
    elif dataset is not None:
        found = _plan_dataset(dataset, batch_size, step_ms, profile)
    else:
        assert run is not None
        found = plan_from_diagnosis(diagnose_run(most_waiting_rank(load_ranks(run))), profile=profile)
    if output is not None:
        save_plan(found, output)
    if as_json:
        console.print_json(plan_document(found))
    elif form == "md":
        console.print_document(plan_markdown(found))
    else:
        console.out.print(plan_text(found))
    if output is not None:
        console.print_notice(f"{output} written")
    raise typer.Exit(_exit_code(found))


def _same_file(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.samefile(other)


def _check(
    run: Path | None, probes: Path | None, dataset: str | None, batch_size: int | None, step_ms: float | None
) -> None:
    """Refuse a call with no input, with several, or with options that would not be used."""
    if run is None and probes is None and dataset is None:
        raise SettingError("there is nothing to plan from", advice="Give a recording, --probes or --dataset")
    if dataset is not None and (run is not None or probes is not None):
        raise SettingError("a dataset is planned for by itself", advice="Leave out the recording and --probes")
    if batch_size is not None and dataset is None:
        raise SettingError("--batch-size is for --dataset", advice="Recordings and probes have their own")
    if step_ms is not None and run is not None:
        raise SettingError("the recording contains the time of a step, and --step-ms too", advice="Keep one of them")


def _check_fleet(dataset: str | None, output: Path | None, profile: Profile, form: str) -> None:
    """Refuse options that are not used with --nodes."""
    if dataset is not None:
        raise SettingError("--nodes plans from a recording or probes", advice="`penstock run` makes a recording")
    options = {"-o": output is not None, "--profile": profile != "balanced", "--format": form != "text"}
    if unused := [name for name, given in options.items() if given]:
        raise SettingError(f"{', '.join(unused)} is for the plan of one loader, not with --nodes", advice="Use --json")


def _rank_need(run: Path | None, probes: Path | None, step_ms: float | None) -> RankNeed:
    """Return what one rank needs."""
    if probes is not None:
        return need_from_probes(read_probes(probes), _step(run, step_ms))
    assert run is not None
    return need_from_diagnosis(diagnose_run(most_waiting_rank(load_ranks(run))))


def _step(run: Path | None, step_ms: float | None) -> StepFacts:
    """Return the time of a step: given as an option, measured by a probe in a recording, or unknown."""
    if run is None:
        return NO_STEP if step_ms is None else StepFacts(step_ms / 1000)
    recording = load(run)
    if not recording.run.probe:
        raise SettingError(f"{run} is the recording of a run", advice="Plan from it alone, without --probes")
    found = read_script_probe(recording).step
    if found is None:
        raise SettingError(f"{run} does not contain the time of a step: the probe was not complete")
    return StepFacts.probed(found)


def _plan_dataset(dataset: str, batch_size: int | None, step_ms: float | None, profile: Profile) -> Plan:
    need_torch("the plan is for its DataLoader")
    source = call_factory(dataset, "a dataset or a DataLoader")
    from penstock.tuner.plan_for import SECONDS, plan_for

    with console.timed("timing one worker", SECONDS / 10):
        step_s = None if step_ms is None else step_ms / 1000
        return plan_for(source, batch_size=batch_size, step_s=step_s, profile=profile)


def _exit_code(found: Plan) -> int:
    """Return the exit code; changes without a gain count only if the run waits, else they are things to try."""
    if any(change.gain is not None for change in found.changes):
        return CHANGES
    if found.source == "recording" and found.wait_share is None:
        return UNDETERMINED
    if (found.wait_share or 0.0) <= WAIT_SHARE_HEALTHY:
        return NOTHING
    return CHANGES if found.changes else UNDETERMINED
