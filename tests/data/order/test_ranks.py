"""The rank of this process, from arguments, torch.distributed, a launcher or Slurm."""

import subprocess
import sys

import pytest

from penstock.data.order.ranks import RankShare, find_ranks
from penstock.errors import SettingError


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)


def launch(monkeypatch, rank, world_size):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world_size)


def test_there_is_one_rank_by_default():
    assert find_ranks(None, None) == RankShare(0, 1)


def test_the_launchers_environment_gives_the_rank(monkeypatch):
    launch(monkeypatch, "3", "8")
    assert find_ranks(None, None) == RankShare(3, 8)


def test_tasks_of_a_slurm_step_are_ranks(monkeypatch):
    for name, value in {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8"}.items():
        monkeypatch.setenv(name, value)
    assert find_ranks(None, None) == RankShare(3, 8)
    launch(monkeypatch, "1", "4")
    assert find_ranks(None, None) == RankShare(1, 4)


def test_arguments_take_precedence_over_the_environment(monkeypatch):
    launch(monkeypatch, "3", "8")
    assert find_ranks(1, 2) == RankShare(1, 2)


@pytest.mark.parametrize(("rank", "world_size"), [(0, None), (None, 2)])
def test_rank_or_world_size_alone_is_refused(rank, world_size):
    with pytest.raises(SettingError, match="go together"):
        find_ranks(rank, world_size)


def test_an_environment_variable_that_is_not_a_number_is_refused(monkeypatch):
    launch(monkeypatch, "first", "8")
    with pytest.raises(SettingError, match=r"RANK=.first. in the environment is not a number"):
        find_ranks(None, None)


def test_a_rank_in_the_environment_that_is_not_below_the_world_size_is_refused(monkeypatch):
    launch(monkeypatch, "8", "8")
    with pytest.raises(SettingError, match=r"^rank 8 is not below world size 8$"):
        find_ranks(None, None)


def test_torch_distributed_takes_precedence_over_the_environment(monkeypatch, tmp_path):
    from torch import distributed

    launch(monkeypatch, "3", "8")
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        assert find_ranks(None, None) == RankShare(0, 1)
    finally:
        distributed.destroy_process_group()
    assert find_ranks(None, None) == RankShare(3, 8)


def test_finding_the_rank_does_not_import_torch():
    code = "import sys; from penstock.data.order.ranks import *; find_ranks(None, None); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE"])
def test_an_environment_with_only_one_of_the_two_variables_is_refused(monkeypatch, name):
    for other in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, "1")
    with pytest.raises(SettingError, match="is not set"):
        find_ranks(None, None)


@pytest.mark.parametrize(("rank", "world_size"), [(-1, 2), (2, 2), (0, 0), (3, 1)])
def test_a_rank_that_is_not_below_the_world_size_is_refused(rank, world_size):
    with pytest.raises(SettingError, match="is not below world size"):
        RankShare(rank, world_size)
