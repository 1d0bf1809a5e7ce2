import pytest
from torch.utils.data import DataLoader

from penstock.watcher.dataloader.main_process import describe
from penstock.watcher.dataloader.settings import command_line_settings


@pytest.mark.parametrize(
    "arguments",
    [
        ["--num-workers", "32"],
        ["--num_workers=32"],
        ["data.num_workers=32"],
        ["--data.loader.num-workers=32"],
        ["--workers", "8", "--epochs", "3", "--workers", "32"],
    ],
)
def test_what_a_command_line_asks_for_is_understood(arguments):
    assert command_line_settings(["train.py", *arguments]) == {"num_workers": 32}


@pytest.mark.parametrize(
    "arguments", [[], ["--num-workers"], ["--num-workers", "auto"], ["num_workers", "32"], ["--lr=0.1"], ["="]]
)
def test_what_it_does_not_ask_for_is_not_made_up(arguments):
    assert command_line_settings(arguments) == {}


def test_a_silent_clamp_shows_as_two_values(monkeypatch):
    monkeypatch.setattr("sys.argv", ["train.py", "--num-workers", "32"])
    setting = describe(DataLoader(range(4), num_workers=min(2, max(1, 32))), 0).settings["num_workers"]
    assert (setting.requested, setting.in_force) == (32, 2)
