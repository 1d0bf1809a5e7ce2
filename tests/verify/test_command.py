import os
import sys

import pytest

from penstock.errors import SettingError
from penstock.verify.command import parse_command
from penstock.watcher.script.runner import Script


@pytest.fixture(autouse=True)
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()


def test_script_and_module_are_parsed_with_their_arguments():
    assert parse_command([sys.executable, "train.py", "--epochs", "1"]) == Script(("train.py", "--epochs", "1"))
    assert parse_command([sys.executable, "-m", "pkg.train", "-o", "x"]) == Script(
        ("pkg.train", "-o", "x"), module=True
    )


def test_python_on_the_path_is_accepted_if_it_is_this_interpreter(monkeypatch, tmp_path):
    folder = os.path.dirname(sys.executable)
    monkeypatch.setenv("PATH", folder)
    assert parse_command([os.path.basename(sys.executable), "train.py"]) == Script(("train.py",))


def test_another_python_is_refused_and_both_are_named(monkeypatch, tmp_path):
    other = tmp_path / "bin" / "python"
    other.parent.mkdir()
    other.symlink_to(os.path.realpath(sys.executable))  # as in another virtual environment
    monkeypatch.setenv("PATH", str(other.parent))
    with pytest.raises(SettingError) as refused:
        parse_command(["python", "train.py"])
    assert str(other) in str(refused.value)
    assert sys.executable in str(refused.value)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ([], "no command"),
        ([sys.executable], "nothing to run"),
        ([sys.executable, "-m"], "names no module"),
        ([sys.executable, "-m", "-v"], "names no module"),
        ([sys.executable, "-c", "print()"], "-c is not passed on"),
        ([sys.executable, "-u", "train.py"], "PYTHONUNBUFFERED"),
        ([sys.executable, "none.py"], "there is no script none.py"),
        (["torchrun", "train.py"], "python -m torch.distributed.run"),
        (["accelerate", "launch", "train.py"], "python -m accelerate"),
        (["train.py"], "Put python before it"),
        (["bash", "run.sh"], "the python command that is inside it"),
        (["/nowhere/python", "train.py"], "there is no /nowhere/python"),
        (["ipython", "train.py"], "ipython is not python"),
    ],
)
def test_other_commands_are_refused_with_advice(command, message):
    with pytest.raises(SettingError) as refused:
        parse_command(command)
    assert message in str(refused.value)
