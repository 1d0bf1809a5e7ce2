import subprocess
import sys

from penstock.plan.doctor.check import CheckStatus
from penstock.plan.doctor.machine import DISTRIBUTIONS, installed, version_checks
from penstock.recording.format import Gpu, Machine

HERE = {**dict.fromkeys(DISTRIBUTIONS.values(), "1.2"), "opencv-python-headless": "4.9"}


def look(machine=None, versions=HERE):
    machine = machine or Machine(python="3.12.1", platform="Linux 6 x86_64", torch="2.13.0")
    return {check.name: check for check in version_checks(machine, versions.get)}


def test_a_whole_installation_is_good():
    found = look()
    assert list(found) == ["python", "torch", "packages"]
    assert all(check.mark is CheckStatus.GOOD for check in found.values())
    assert found["packages"].value == "penstock 1.2, numpy 1.2, simplejpeg 1.2, libdeflate 1.2, opencv 4.9"


def test_a_cpu_build_beside_a_gpu_will_not_do():
    machine = Machine(python="3.12.1", torch="2.13.0+cpu")
    assert look(machine)["torch"].mark is CheckStatus.GOOD
    assert look(Machine(torch="2.13.0+cpu", gpus=(Gpu(name="H200"),)))["torch"].mark is CheckStatus.BAD


def test_no_torch_is_nothing_to_judge():
    check = look(Machine(python="3.12.1"))["torch"]
    assert (check.value, check.mark) == ("none", CheckStatus.OPEN)


def test_a_missing_decoder_is_named():
    check = look(versions={name: known for name, known in HERE.items() if name != "deflate"})["packages"]
    assert check.mark is CheckStatus.BAD
    assert check.meaning.startswith("libdeflate cannot be found")


def test_two_opencvs_in_one_place_are_named():
    check = look(versions={**HERE, "opencv-python": "4.9"})["packages"]
    assert check.mark is CheckStatus.LOOK
    assert "opencv-python-headless and opencv-python" in check.meaning


def test_what_is_installed_is_read_without_importing_it():
    assert installed("numpy")[0].isdigit()
    assert installed("no-such-distribution") is None
    code = (
        "import sys; from penstock.plan.doctor.machine import version_checks; "
        "from penstock.recording.format import Machine; list(version_checks(Machine())); "
        "print(*sorted({'torch', 'cv2', 'simplejpeg'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == ""
