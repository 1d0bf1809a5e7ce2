"""The public names of samplers and train, and that importing them is cheap."""

import subprocess
import sys

from penstock import samplers, train


def test_the_public_names_are_these_and_can_be_imported():
    assert sorted(train.__all__) == [
        "EvaluationBudget",
        "Every",
        "GradClip",
        "Metrics",
        "Prefetcher",
        "Throttle",
        "accumulate",
        "compile",
        "precision",
        "scale_lr",
        "to_device",
    ]
    assert sorted(samplers.__all__) == [
        "BalancedSampler",
        "BucketSampler",
        "MetadataTable",
        "PKColumns",
        "PKSampler",
        "WeightedSampler",
        "read_metadata",
    ]
    assert all(getattr(samplers, name).__name__ == name for name in samplers.__all__)
    assert all(getattr(train, name).__name__ == name for name in train.__all__)
    assert set(train.__all__) <= set(dir(train))


def test_samplers_do_not_import_torch():
    code = (
        "from penstock.samplers import BalancedSampler, BucketSampler, MetadataTable, PKSampler, WeightedSampler; "
        "table = MetadataTable.of(identity=[1, 1, 2, 2]); print(len(list(PKSampler(table, 2, 2)))); "
        "import sys; sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
