"""Ranks as launchers report them in the environment."""

import pytest

from penstock.core.ranks import RankInfo, global_rank, local_rank, slurm_cores
from penstock.errors import SettingError

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
SLURM = {
    "SLURM_JOB_ID": "77",
    "SLURM_NTASKS": "7",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4,3",
    "SLURM_CPUS_ON_NODE": "32",
}


@pytest.fixture
def launch(monkeypatch):
    """Set an environment that has only these variables of launchers."""

    def launch(*environments, **more):
        for name in {*TORCHRUN, *SLURM, "SLURM_NTASKS_PER_NODE", "SLURM_PTY_PORT", "MASTER_ADDR"}:
            monkeypatch.delenv(name, raising=False)
        for environment in (*environments, more):
            for name, value in environment.items():
                monkeypatch.setenv(name, value)

    return launch


def test_a_process_without_a_launcher_is_alone(launch):
    launch()
    assert (global_rank(), local_rank(), slurm_cores()) == (None, RankInfo(0, 1), None)


def test_the_variables_of_torchrun_are_read(launch):
    launch(TORCHRUN)
    assert (global_rank(), local_rank()) == (RankInfo(5, 8), RankInfo(1, 4))


def test_a_task_of_slurm_is_a_rank(launch):
    launch(SLURM)
    assert (global_rank(), local_rank(), slurm_cores()) == (RankInfo(5, 7), RankInfo(1, 3), 32)


@pytest.mark.parametrize(
    ("per_node", "node", "count"), [("4(x2),3", "1", 4), ("4(x2),3", "2", 3), ("8", "0", 8), ("2(x100)", "99", 2)]
)
def test_tasks_of_each_node_are_read_as_slurm_writes_them(launch, per_node, node, count):
    launch(SLURM, SLURM_STEP_TASKS_PER_NODE=per_node, SLURM_NODEID=node)
    assert local_rank().world_size == count


def test_the_requested_tasks_per_node_count_where_slurm_lists_none(launch, monkeypatch):
    launch(SLURM, SLURM_NTASKS_PER_NODE="2")
    monkeypatch.delenv("SLURM_STEP_TASKS_PER_NODE")
    assert local_rank() == RankInfo(1, 2)


def test_torchrun_goes_before_slurm_in_a_single_task(launch):
    launch(SLURM, TORCHRUN, SLURM_STEP_NUM_TASKS="1", SLURM_PROCID="0", SLURM_LOCALID="0")
    assert (global_rank(), local_rank()) == (RankInfo(5, 8), RankInfo(1, 4))


def test_torchrun_goes_before_slurm_with_one_task_per_node(launch):
    launch(SLURM, TORCHRUN, SLURM_STEP_NUM_TASKS="2", SLURM_PROCID="1", SLURM_STEP_TASKS_PER_NODE="1(x2)")
    assert (global_rank(), local_rank()) == (RankInfo(5, 8), RankInfo(1, 4))


def test_ranks_that_equal_slurms_tasks_have_slurms_local_rank(launch):
    launch(SLURM, RANK="5", WORLD_SIZE="7", LOCAL_RANK="1")
    assert (global_rank(), local_rank()) == (RankInfo(5, 7), RankInfo(1, 3))


@pytest.mark.parametrize(
    "environment",
    [
        {name: value for name, value in SLURM.items() if "STEP" not in name},
        {**SLURM, "SLURM_STEP_NUM_TASKS": "1"},
        {**SLURM, "SLURM_PTY_PORT": "40000"},
    ],
    ids=["a batch script", "a step of one task", "a shell of srun --pty"],
)
def test_a_process_alone_under_slurm_is_alone(launch, environment):
    launch(environment)
    assert (global_rank(), local_rank()) == (None, RankInfo(0, 1))


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1", "::1"])
def test_ranks_that_meet_at_a_loopback_address_are_all_on_this_machine(launch, address):
    launch(RANK="2", WORLD_SIZE="4", MASTER_ADDR=address)
    assert local_rank() == RankInfo(2, 4)


def test_ranks_that_meet_at_another_address_may_be_on_other_machines(launch):
    launch(RANK="2", WORLD_SIZE="4", MASTER_ADDR="10.0.0.7")
    assert local_rank() == RankInfo(0, 1)


def test_torch_distributed_goes_before_the_environment(launch, tmp_path):
    from torch import distributed

    launch(TORCHRUN, SLURM)
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        assert global_rank() == RankInfo(0, 1)
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize("name", ["RANK", "LOCAL_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_a_variable_that_is_not_a_number_is_refused_by_name(launch, name):
    launch(SLURM if name.startswith("SLURM") else TORCHRUN, **{name: "-1"})
    with pytest.raises(SettingError, match=f"{name}='-1' in the environment is not a number"):
        (global_rank(), local_rank())


def test_a_local_rank_above_the_local_world_size_is_refused(launch):
    launch(TORCHRUN, LOCAL_RANK="4")
    with pytest.raises(SettingError, match="local rank 4 is not below the 4 ranks of this machine"):
        local_rank()
