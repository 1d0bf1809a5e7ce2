import subprocess
import sys

import pytest
from typer.main import get_command

import penstock as package
from penstock.cli import main


def test_the_version_is_that_of_the_package(penstock):
    ran = penstock("--version")
    assert (ran.code, ran.out.strip()) == (0, f"penstock {package.__version__}")


def _commands(group=None, names=()):
    """Yield the names of all commands and groups."""
    group = group or get_command(main.make_app())
    yield names
    for name, command in getattr(group, "commands", {}).items():
        yield from _commands(command, (*names, name))


@pytest.mark.parametrize("command", [*_commands()], ids=" ".join)
def test_the_help_of_every_command_has_an_example_and_exit_codes(in_process, command):
    ran = in_process(*command, "--help")
    assert ran.code == 0
    assert "Usage: " in ran.out
    assert len(ran.out.split()) > 30
    assert all(len(line) <= 80 for line in ran.out.splitlines())
    if command not in ((), ("shards",)):
        lines = [line.strip() for line in ran.out.splitlines()]
        assert any(line.startswith(f"penstock {' '.join(command)} ") for line in lines), "an example"
        assert any(line.startswith("Exit code: ") for line in lines)


def test_a_wrong_path_is_one_line_on_stderr_and_exit_code_2(penstock):
    ran = penstock("shards", "ls", "nowhere/*.tar")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.strip() == "penstock: no shard matches 'nowhere/*.tar'"


@pytest.mark.parametrize("words", [["--version"], ["run", "--help"], ["shards", "ls", "--help"]])
def test_a_call_imports_only_the_command_that_it_names(words):
    code = "import sys; from penstock.cli.main import main\n"
    code += "try: main()\nfinally: print(*sys.modules, file=sys.stderr)"
    ran = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    imported = {name.removeprefix("penstock.cli.") for name in ran.stderr.split() if name.startswith("penstock.cli.")}
    assert imported & {*main.COMMANDS} == {*words} & {*main.COMMANDS}
    assert any(name.startswith("shards.") for name in imported) == ("shards" in words)


def test_an_unknown_command_is_exit_code_2(in_process):
    assert in_process("shards", "polish").code == 2


def test_the_public_names_are_exactly_these():
    images = ["Boxes", "CutMix", "Geometry", "GpuTransform", "Image", "Mask", "MixUp", "RandomResizedCrop"]
    fields = ["Array", "Field", "Json", "Label", "Raw", "Text", *images]
    options = ["CacheOptions", "EngineOptions", "ErrorOptions", "ReadOptions"]
    functions = ["plan_for", "probe_step", "tune", "watch"]
    assert sorted(package.__all__) == sorted([*fields, *options, "AdaptiveLoader", "DataLoader", "Loader", *functions])
    assert all(getattr(package, name).__name__ == name for name in package.__all__)
    assert set(package.__all__) <= set(dir(package))
    assert {name for name in vars(package) if not name.startswith("_") and not _is_module(package, name)} <= {
        *package.__all__,
        "Any",
        "TYPE_CHECKING",
        "annotations",
    }
    with pytest.raises(AttributeError, match="no attribute 'Lodaer'"):
        package.Lodaer  # noqa: B018


def test_importing_the_package_imports_none_of_its_dependencies():
    code = "import sys, penstock; print(*sorted({'torch', 'numpy', 'cv2', 'penstock.loader'} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == ""


def test_the_loader_is_imported_without_torch():
    code = "import sys, penstock; penstock.Loader; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


def _is_module(package, name):
    return type(getattr(package, name)).__name__ == "module"
