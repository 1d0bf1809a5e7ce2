"""DataLoader calls found in the source of a script."""

import pytest

from penstock.errors import SettingError
from penstock.plan.doctor.script_source import SOURCE_BYTES_MAX, loader_calls


def calls(tmp_path, source):
    file = tmp_path / "train.py"
    file.write_text(source)
    return loader_calls(file)


def values(call):
    return {name: argument.value if argument.known else argument.text for name, argument in call.arguments.items()}


def test_literals_are_read_and_other_arguments_have_torch_defaults(tmp_path):
    (call,) = calls(tmp_path, "\nloader = DataLoader(ds, batch_size=24, num_workers=32, prefetch_factor=12)\n")
    assert call.line == 2
    assert values(call) == {
        "batch_size": 24,
        "num_workers": 32,
        "prefetch_factor": 12,
        "pin_memory": False,
        "persistent_workers": False,
    }
    assert [name for name, argument in call.arguments.items() if argument.given] == [
        "batch_size",
        "num_workers",
        "prefetch_factor",
    ]


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.utils.data.DataLoader(ds, num_workers=3)",
        "from torch.utils import data\ndata.DataLoader(ds, num_workers=3)",
        "from torch.utils.data import DataLoader as Batches\nBatches(ds, num_workers=3)",
        "DataLoader(ds, 8, True, None, None, 3)",
        "W = 3\nDataLoader(ds, num_workers=W)",
        "W: int = 3\ndef main():\n    return [DataLoader(ds, num_workers=W)]",
    ],
)
def test_every_form_of_the_call_is_found(tmp_path, source):
    (call,) = calls(tmp_path, source)
    assert values(call)["num_workers"] == 3


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("DataLoader(ds, num_workers=args.workers)", "args.workers"),
        ("DataLoader(ds, num_workers=os.cpu_count() - 1)", "os.cpu_count() - 1"),
        ("W = 3\nW = 4\nDataLoader(ds, num_workers=W)", "W"),
        ("W = 3\ndef main(W):\n    DataLoader(ds, num_workers=W)", "W"),
        ("W = 3\ndef main():\n    global W\n    DataLoader(ds, num_workers=W)", "W"),
        ("W = 3\nW += 1\nDataLoader(ds, num_workers=W)", "W"),
        ("DataLoader(ds, **options)", "**options"),
        ("DataLoader(*arguments)", "*…"),
        ("DataLoader(ds, num_workers='8')", "'8'"),
        ("DataLoader(ds, num_workers=True)", "True"),
    ],
)
def test_values_known_only_at_run_time_are_not_guessed(tmp_path, source, text):
    (call,) = calls(tmp_path, source)
    assert not call["num_workers"].known
    assert call["num_workers"].text == text


def test_keyword_is_known_beside_expanded_arguments(tmp_path):
    (call,) = calls(tmp_path, "DataLoader(ds, num_workers=4, **more)")
    assert values(call)["num_workers"] == 4
    assert values(call)["pin_memory"] == "**more"


def test_long_expressions_are_shortened(tmp_path):
    (call,) = calls(tmp_path, f"DataLoader(ds, num_workers={'f(' * 30}1{')' * 30})")
    assert len(call["num_workers"].text) == 41


def test_calls_are_sorted_by_line(tmp_path):
    found = calls(tmp_path, "def late():\n    DataLoader(a, num_workers=1)\n\nDataLoader(b, num_workers=2)\n")
    assert [call.line for call in found] == [2, 4]


def test_script_without_a_dataloader_has_no_calls(tmp_path):
    assert calls(tmp_path, "loader = penstock.Loader('s/', fields)\nx.loader(1)()\n") == ()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"def broken(:\n", "line 1"),
        (b"x = 1\0", "not Python"),
        (b"\xff\xfe\x00", "not Python"),
        (b"(" * 100_000, "not Python"),
        (b"x = 1\n" * (SOURCE_BYTES_MAX // 6 + 1), "longer than 4 MiB"),
    ],
)
def test_file_that_is_no_script_is_refused(tmp_path, content, words):
    file = tmp_path / "train.py"
    file.write_bytes(content)
    with pytest.raises(SettingError, match=words):
        loader_calls(file)


def test_unreadable_script_is_refused(tmp_path):
    with pytest.raises(SettingError, match="cannot be read"):
        loader_calls(tmp_path)


def test_script_is_not_run_and_its_warnings_are_suppressed(tmp_path):
    assert calls(tmp_path, "import re\nre.compile('\\d')\nraise SystemExit(9)\n") == ()
