import subprocess
import sys

import pytest

import penstock as package


def test_version_is_the_packages(penstock):
    ran = penstock("--version")
    assert (ran.code, ran.out.strip()) == (0, f"penstock {package.__version__}")


@pytest.mark.parametrize(
    "command",
    [
        (),
        ("doctor",),
        ("demo",),
        ("diagnose",),
        ("report",),
        ("compare",),
        ("plan",),
        ("probe",),
        ("sweep",),
        ("tune",),
        ("verify",),
        ("shards",),
        ("shards", "ls"),
        ("shards", "index"),
        ("shards", "check"),
        ("shards", "pack"),
    ],
)
def test_help_teaches_every_command(penstock, command):
    ran = penstock(*command, "--help")
    assert ran.code == 0
    assert "Usage: " in ran.out
    assert len(ran.out.split()) > 30
    assert all(len(line) <= 80 for line in ran.out.splitlines())


def test_a_wrong_path_is_one_line_on_stderr_and_exit_code_2(penstock):
    ran = penstock("shards", "ls", "nowhere/*.tar")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.strip() == "penstock: no shard matches 'nowhere/*.tar'"


def test_an_unknown_command_is_exit_code_2(penstock):
    assert penstock("shards", "polish").code == 2


def test_the_public_names_are_these_and_no_more():
    fields = ["Array", "Finish", "Image", "Json", "Label", "Raw", "Text"]
    functions = ["plan_for", "probe_step", "tune", "watch"]
    assert sorted(package.__all__) == sorted([*fields, "AdaptiveLoader", "Loader", *functions])
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
