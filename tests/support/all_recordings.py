"""Every recording that the repository holds or can make without a real run, by name: files and simulated runs."""

from functools import cache

from penstock.recording.reader import load
from tests.diagnose.test_rules import HEALTHY, RUNS
from tests.support.paths import DATA_FILES
from tests.support.timm_recordings import SHORT_RUN, TimmRun

FILES = sorted(
    path.name for path in DATA_FILES.glob("*.jsonl*") if path.name != "version1_all_fields.jsonl"
)  # which is the recording of a probe
NAMES = [
    *FILES,
    *(f"rule {name}" for name in RUNS),
    *(f"healthy {name}" for name in HEALTHY),
    "timm, 3 epochs",
    "timm, 1 epoch",
]


@cache
def recording_named(name):
    """Return the recording of this name."""
    if name in FILES:
        return load(DATA_FILES / name)
    kind, _, rest = name.partition(" ")
    if kind == "timm,":
        return (TimmRun() if rest == "3 epochs" else SHORT_RUN).recording()
    return (RUNS if kind == "rule" else HEALTHY)[rest].recording()
