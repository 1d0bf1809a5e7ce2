"""Scripts run under watch in a new interpreter; they must behave as they do under Python alone."""

import os
import signal
import subprocess
import sys
import tempfile
import textwrap

import pytest

from penstock.recording.reader import load
from penstock.testing import REID, make_shards
from penstock.watcher.script.runner import Script, run_script

TRAIN = """
    import sys
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    class Broken(TensorDataset):
        def __getitem__(self, index):
            if index == 9:
                raise LookupError("nine")
            return super().__getitem__(index)

    def train(dataset=TensorDataset, optimizer_class=None, **settings):  # an optimizer imports torch's compiler: slow
        model = torch.nn.Linear(4, 1)
        optimizer = optimizer_class and optimizer_class(model.parameters(), 0.1)
        train_loader = DataLoader(dataset(torch.randn(12, 4)), **{"batch_size": 3, "num_workers": 1, **settings})
        for (x,) in train_loader:
            model(x).sum().backward()
            if optimizer is not None:
                optimizer.step()
"""


class Outcome:
    """A script's exit code, what it printed, and its recordings."""

    def __init__(self, code, out, err, recordings=()):
        self.code, self.out, self.err, self.recordings = code, out, err, recordings

    @property
    def recording(self):
        return load(self.recordings[0])


@pytest.fixture
def write(tmp_path):
    def write(text, name="train.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(textwrap.dedent(text))
        return path

    return write


@pytest.fixture
def run(tmp_path, capfd, monkeypatch, write):
    """Return a function that runs a script under watch, in the folder of the script."""

    def run(text, *arguments, module=False, name="train.py"):
        write(text, name)
        monkeypatch.chdir(tmp_path)
        capfd.readouterr()
        target = name.removesuffix(".py").replace("/", ".") if module else name
        result = run_script(Script((target, *arguments), module), tmp_path / "run.jsonl")
        out, err = capfd.readouterr()
        return Outcome(result.code, out, err, result.recordings)

    return run


@pytest.fixture
def run_without_watch(tmp_path, write):
    """Return a function that runs a script under Python alone."""

    def run_without_watch(text, *arguments, module=False, name="train.py"):
        write(text, name)
        target = ["-m", name.removesuffix(".py").replace("/", ".")] if module else [name]
        process = subprocess.run([sys.executable, *target, *arguments], cwd=tmp_path, capture_output=True, text=True)
        return Outcome(process.returncode, process.stdout, process.stderr)

    return run_without_watch


ABOUT = """
    import sys
    print(__name__, __file__, __spec__ and __spec__.name, __package__, sys.argv, sys.path, sys.orig_argv[1:])
    print("to stderr", file=sys.stderr)
"""


@pytest.mark.parametrize(("name", "module"), [("train.py", False), ("package/train.py", True)])
def test_a_script_sees_itself_as_under_python(run, run_without_watch, name, module):
    expected = run_without_watch(ABOUT, "--epochs", "1", "-o", "x", module=module, name=name)
    outcome = run(ABOUT, "--epochs", "1", "-o", "x", module=module, name=name)
    assert (outcome.code, outcome.out, outcome.err) == (0, expected.out, expected.err)


def test_relative_imports_work_in_a_module(run, write):
    write("answer = 42", "package/numbers.py")
    outcome = run("from .numbers import answer; print(answer)", module=True, name="package/train.py")
    assert outcome.out == "42\n"


@pytest.mark.parametrize(
    ("statement", "code", "exit_code", "how"),
    [
        ("sys.exit()", 0, 0, "done"),
        ("sys.exit(3)", 3, 3, "raised"),
        ("sys.exit('no data')", 1, 1, "raised"),
        ("raise ValueError('x')", 1, 1, "raised"),
        ("os._exit(7)", 7, 7, "raised"),
        ("os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT, 130, "interrupted"),
        ("os.execv(sys.executable, [sys.executable, '-c', 'raise SystemExit(4)'])", 4, 4, "raised"),
    ],
)
def test_a_script_ends_as_under_python_and_its_recording_has_an_end_line(
    run, run_without_watch, statement, code, exit_code, how
):
    text = f"import os, signal, sys, time\n{statement}\ntime.sleep(60)"
    expected, outcome = run_without_watch(text), run(text)
    assert (outcome.code, outcome.err) == (expected.code, expected.err) == (code, expected.err)
    end = outcome.recording.end
    assert (end.exit_code, end.how) == (exit_code, how)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL", "SIGSEGV"])
def test_a_killed_script_is_recorded_without_an_end(run, name):
    outcome = run(f"import os, resource, signal, time\nos.kill(os.getpid(), signal.{name})\ntime.sleep(60)")
    assert outcome.code == -getattr(signal, name)
    assert outcome.recording.end is None


def test_a_script_killed_during_an_epoch_leaves_no_temporary_files_of_penstock(run, tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    text = """
        import os, signal
        from torch.utils.data import DataLoader
        for _ in DataLoader(range(4), batch_size=None, num_workers=1):  # tensors would need sockets in TMPDIR
            os.kill(os.getpid(), signal.SIGKILL)
    """
    assert run(text).code == -signal.SIGKILL
    assert [path.name for path in folder.glob("penstock-*")] == []


def test_an_existing_sitecustomize_is_still_imported(run, write, monkeypatch, tmp_path):
    write("import builtins; builtins.marker = 'existing'", "site/sitecustomize.py")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    assert run("import sitecustomize; print(marker, sitecustomize.__file__)").out == (
        f"existing {tmp_path / 'site' / 'sitecustomize.py'}\n"
    )


def test_an_interpreter_without_penstock_runs_the_script(run):
    text = """
        import subprocess, sys
        subprocess.run([sys.executable, "-S", "-c", "import site; site.main = None; print('runs')"], check=True)
    """
    assert run(text).out == "runs\n"


def test_heavy_packages_are_not_imported_before_the_script_imports_them(run):
    outcome = run("import sys; print([name for name in sys.modules if name.startswith(('torch', 'msgspec', 'rich'))])")
    assert outcome.out == "[]\n"


def test_spawned_workers_import_the_script_again_and_the_exit_code_is_recorded(run):
    text = (
        TRAIN
        + """
    print("imported as", __name__)
    if __name__ == "__main__":
        train(optimizer_class=torch.optim.SGD, multiprocessing_context="spawn")
        sys.exit(3)
    """
    )
    outcome = run(text)
    assert (outcome.code, outcome.err) == (3, "")
    assert sorted(outcome.out.split("\n")) == ["", "imported as __main__", "imported as __mp_main__"]
    recording = outcome.recording
    assert [loader.name for loader in recording.loaders.values()] == ["train_loader"]
    assert len(recording.steps) == 4
    assert {"forward", "backward", "optimizer"} <= set(recording.steps[-1].phases)
    assert {fetch.worker for fetch in recording.fetches} == {0}
    assert (recording.end.exit_code, recording.end.how) == (3, "done")
    assert recording.run.command == ("train.py",)


def test_a_script_that_raises_during_an_epoch_prints_pythons_traceback_and_is_recorded(run, run_without_watch):
    text = TRAIN + "\n    train(Broken, num_workers=0)\n"
    expected, outcome = run_without_watch(text), run(text)
    assert (outcome.code, outcome.out, outcome.err) == (1, "", expected.err)
    recording = outcome.recording
    assert (recording.end.exit_code, recording.end.how) == (1, "raised")
    assert [end.how for end in recording.epoch_ends] == ["raised"]
    assert "LookupError: nine" in [event.detail.get("error") for event in recording.events]


def test_a_forked_child_is_not_recorded_and_the_scripts_signal_handlers_work(run, tmp_path):
    text = (
        TRAIN
        + """
    import os, signal
    received = []
    signal.signal(signal.SIGUSR1, lambda number, frame: received.append(number))
    train()
    pid = os.fork()
    train()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    os.kill(os.getpid(), signal.SIGUSR1)
    print(received == [signal.SIGUSR1])
    """
    )
    outcome = run(text)
    assert (outcome.code, outcome.out) == (0, "True\n")
    assert [path.name for path in outcome.recordings] == ["run.jsonl"]
    assert len(outcome.recording.epochs) == 2
    assert outcome.recording.notes == ()


def test_every_rank_of_torchrun_has_its_own_recording(run, tmp_path, write):
    write(TRAIN + "\n    train()\n", "ranked.py")
    arguments = ("--nproc-per-node", "2", "--master-port", "0", "ranked.py")
    launch = "import runpy; runpy.run_module('torch.distributed.run', run_name='__main__', alter_sys=True)"
    outcome = run(launch, *arguments)
    assert outcome.code == 0, outcome.err
    assert sorted(path.name for path in outcome.recordings) == ["run.jsonl", "run.rank1.jsonl"]
    assert [(load(path).run.rank, len(load(path).steps)) for path in outcome.recordings] == [(0, 4), (1, 4)]


def test_a_second_process_of_the_same_rank_gets_its_own_recording(run):
    text = (
        TRAIN
        + """
    import os
    train()
    if "AGAIN" not in os.environ:
        os.environ["AGAIN"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.argv])
    sys.exit(5)
    """
    )
    outcome = run(text)
    assert outcome.code == 5
    first, second = outcome.recordings
    assert (first.name, second.name.startswith("run.pid")) == ("run.jsonl", True)
    assert load(second).end.exit_code == 5
    assert load(first).end is None
    assert os.path.getsize(first) > 0


def test_a_script_with_a_penstock_loader_is_recorded(run, tmp_path):
    make_shards(tmp_path / "shards", REID, samples=12, shards=1, scale=0.1)
    text = """
        import penstock
        if __name__ == "__main__":
            train = penstock.Loader("shards/*.tar", {"meta": penstock.Json(".json")}, batch_size=4, num_workers=1)
            print([len(batch["__key__"]) for batch in train])
    """
    outcome = run(text)
    assert (outcome.out, outcome.err, outcome.code) == ("[4, 4, 4]\n", "", 0)
    assert [(loader.type, loader.name) for loader in outcome.recording.loaders.values()] == [("penstock", "train")]
    assert len(outcome.recording.steps) == 3


def test_a_script_that_calls_watch_is_recorded_by_the_run_and_warned(run, tmp_path):
    text = """
        import penstock
        from torch.utils.data import DataLoader
        with penstock.watch(DataLoader(range(12), batch_size=4), record="mine.jsonl") as batches:
            print([len(batch) for batch in batches])
    """
    outcome = run(text)
    assert (outcome.out, outcome.code) == ("[4, 4, 4]\n", 0)
    assert "record cannot be set now" in outcome.err
    assert [step.samples for step in outcome.recording.steps] == [4, 4, 4]
    assert not (tmp_path / "mine.jsonl").exists()


def test_a_loader_class_imported_after_recording_began_is_watched(run):
    outcome = run(
        TRAIN
        + """
    class Numbers:
        def __len__(self):
            return 10

        def __getitem__(self, index):
            return index

    if __name__ == "__main__":
        train()
        assert "penstock.loader" not in sys.modules
        import penstock
        print(sum(1 for _ in penstock.Loader(Numbers(), batch_size=2, num_workers=0)))
    """
    )
    assert (outcome.code, outcome.out.split()) == (0, ["5"]), outcome.err
    steps = [step.loader for step in outcome.recording.steps]
    assert (steps.count(0), steps.count(1)) == (4, 5)
    assert outcome.recording.loaders[1].type == "penstock"


STATEFUL = """
    import sys
    import torch
    from torch.utils.data import IterableDataset

    torch.manual_seed(0)

    class Stream(IterableDataset):
        def __iter__(self):
            yield from torch.arange(12.0)[:, None]

    def stateful_loader(dataset, **settings):
        from torchdata.stateful_dataloader import StatefulDataLoader
        return StatefulDataLoader(dataset, batch_size=3, **settings)
"""


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "earlier_epoch",
    ["", "for _ in torch.utils.data.DataLoader(range(2)): pass"],
    ids=["before any epoch", "after an epoch"],
)
def test_a_stateful_dataloader_is_watched_with_its_workers(run, earlier_epoch):
    pytest.importorskip("torchdata")
    outcome = run(
        STATEFUL
        + f"""
    {earlier_epoch}
    loader = stateful_loader(torch.arange(12.0)[:, None], num_workers=2, persistent_workers=True)
    epochs = [[batch.flatten().tolist() for batch in loader] for epoch in range(2)]
    assert epochs[0] == epochs[1] and sum(map(sum, epochs[0])) == 66, epochs
    loader.state_dict()
    """
    )
    assert outcome.code == 0, outcome.err
    recording = outcome.recording
    number = max(recording.loaders)
    step_epochs = [step.epoch for step in recording.steps if step.loader == number]
    assert (step_epochs.count(0), step_epochs.count(1)) == (4, 4)
    fetches = [fetch for fetch in recording.fetches if fetch.loader == number]
    assert sorted((fetch.epoch, fetch.batch, fetch.samples) for fetch in fetches) == [
        (epoch, batch, 3) for epoch in range(2) for batch in range(4)
    ]
    assert {fetch.worker for fetch in fetches} == {0, 1}
    assert not [event for event in recording.events if event.what == "watcher_failed"]


@pytest.mark.parametrize("workers", [0, 1])
def test_watching_an_iterable_stateful_dataloader_does_not_change_its_state(run, run_without_watch, workers):
    pytest.importorskip("torchdata")
    script = (
        STATEFUL
        + f"""
    loader = stateful_loader(Stream(), num_workers={workers})
    for index, batch in enumerate(loader):
        if index == 1:
            print(sorted(str(item) for item in loader.state_dict().items()))
    """
    )
    outcome = run(script)
    assert outcome.code == 0, outcome.err
    assert outcome.out == run_without_watch(script).out
    assert [fetch.samples for fetch in outcome.recording.fetches] == [3, 3, 3, 3]
