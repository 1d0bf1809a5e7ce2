"""What users may import, and at what price."""

import subprocess
import sys

from penstock import train


def test_the_public_names_are_these_and_each_is_found():
    assert sorted(train.__all__) == [
        "BalancedSampler",
        "BucketSampler",
        "EvaluationBudget",
        "Every",
        "GradClip",
        "MetadataTable",
        "Metrics",
        "PKColumns",
        "PKSampler",
        "Prefetcher",
        "Throttle",
        "WeightedSampler",
        "accumulate",
        "compile",
        "precision",
        "read_metadata",
        "scale_lr",
        "to_device",
    ]
    assert all(getattr(train, name).__name__ == name for name in train.__all__)
    assert set(train.__all__) <= set(dir(train))


def test_samplers_do_without_torch():
    code = (
        "from penstock.train import BalancedSampler, BucketSampler, MetadataTable, PKSampler, WeightedSampler; "
        "table = MetadataTable.of(identity=[1, 1, 2, 2]); print(len(list(PKSampler(table, 2, 2)))); "
        "import sys; sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
