"""Scripts are real, and run in an interpreter of their own; what plain python does with them is what we expect."""

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

    def steps(dataset=TensorDataset, descend=None, **settings):  # an optimizer imports torch's compiler: seconds
        model = torch.nn.Linear(4, 1)
        optimizer = descend and descend(model.parameters(), 0.1)
        train_loader = DataLoader(dataset(torch.randn(12, 4)), **{"batch_size": 3, "num_workers": 1, **settings})
        for (x,) in train_loader:
            model(x).sum().backward()
            if optimizer is not None:
                optimizer.step()
"""


class Ran:
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
    """The script under watch, from the folder it lies in."""

    def run(text, *arguments, module=False, name="train.py"):
        write(text, name)
        monkeypatch.chdir(tmp_path)
        capfd.readouterr()
        what = name.removesuffix(".py").replace("/", ".") if module else name
        outcome = run_script(Script((what, *arguments), module), tmp_path / "run.jsonl")
        out, err = capfd.readouterr()
        return Ran(outcome.code, out, err, outcome.recordings)

    return run


@pytest.fixture
def plain(tmp_path, write):
    """The same without us."""

    def plain(text, *arguments, module=False, name="train.py"):
        write(text, name)
        what = ["-m", name.removesuffix(".py").replace("/", ".")] if module else [name]
        done = subprocess.run([sys.executable, *what, *arguments], cwd=tmp_path, capture_output=True, text=True)
        return Ran(done.returncode, done.stdout, done.stderr)

    return plain


ABOUT = """
    import sys
    print(__name__, __file__, __spec__ and __spec__.name, __package__, sys.argv, sys.path, sys.orig_argv[1:])
    print("to stderr", file=sys.stderr)
"""


@pytest.mark.parametrize(("name", "module"), [("train.py", False), ("package/train.py", True)])
def test_a_script_sees_itself_as_under_python(run, plain, name, module):
    expected = plain(ABOUT, "--epochs", "1", "-o", "x", module=module, name=name)
    ran = run(ABOUT, "--epochs", "1", "-o", "x", module=module, name=name)
    assert (ran.code, ran.out, ran.err) == (0, expected.out, expected.err)


def test_relative_imports_work_in_a_module(run, write):
    write("answer = 42", "package/numbers.py")
    ran = run("from .numbers import answer; print(answer)", module=True, name="package/train.py")
    assert ran.out == "42\n"


@pytest.mark.parametrize(
    ("end", "code", "exit_code", "how"),
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
def test_however_a_script_ends_it_ends_as_under_python_and_has_an_end_line(run, plain, end, code, exit_code, how):
    text = f"import os, signal, sys, time\n{end}\ntime.sleep(60)"
    expected, ran = plain(text), run(text)
    assert (ran.code, ran.err) == (expected.code, expected.err) == (code, expected.err)
    last = ran.recording.end
    assert (last.exit_code, last.how) == (exit_code, how)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL", "SIGSEGV"])
def test_a_killed_script_is_recorded_without_an_end(run, name):
    ran = run(f"import os, resource, signal, time\nos.kill(os.getpid(), signal.{name})\ntime.sleep(60)")
    assert ran.code == -getattr(signal, name)
    assert ran.recording.end is None


def test_a_script_killed_in_mid_pass_leaves_nothing_of_ours_behind(run, tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    text = """
        import os, signal
        from torch.utils.data import DataLoader
        for _ in DataLoader(range(4), batch_size=None, num_workers=1):  # no tensors: their sockets lie in TMPDIR
            os.kill(os.getpid(), signal.SIGKILL)
    """
    assert run(text).code == -signal.SIGKILL
    assert [path.name for path in folder.glob("penstock-*")] == []


def test_a_sitecustomize_that_was_there_still_works(run, write, monkeypatch, tmp_path):
    write("import builtins; builtins.theirs = 'theirs'", "site/sitecustomize.py")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    assert run("import sitecustomize; print(theirs, sitecustomize.__file__)").out == (
        f"theirs {tmp_path / 'site' / 'sitecustomize.py'}\n"
    )


def test_an_interpreter_that_does_not_know_us_runs_on(run):
    text = """
        import subprocess, sys
        subprocess.run([sys.executable, "-S", "-c", "import site; site.main = None; print('runs')"], check=True)
    """
    assert run(text).out == "runs\n"


def test_nothing_is_imported_before_the_script_asks(run):
    ran = run("import sys; print([name for name in sys.modules if name.startswith(('torch', 'msgspec', 'rich'))])")
    assert ran.out == "[]\n"


def test_spawned_workers_import_the_script_again_and_the_exit_code_is_told(run):
    text = (
        TRAIN
        + """
    print("imported as", __name__)
    if __name__ == "__main__":
        steps(descend=torch.optim.SGD, multiprocessing_context="spawn")
        sys.exit(3)
    """
    )
    ran = run(text)
    assert (ran.code, ran.err) == (3, "")
    assert sorted(ran.out.split("\n")) == ["", "imported as __main__", "imported as __mp_main__"]
    recording = ran.recording
    assert [loader.name for loader in recording.loaders.values()] == ["train_loader"]
    assert len(recording.steps) == 4
    assert {"forward", "backward", "optimizer"} <= set(recording.steps[-1].phases)
    assert {fetch.worker for fetch in recording.fetches} == {0}
    assert (recording.end.exit_code, recording.end.how) == (3, "done")
    assert recording.run.command == ("train.py",)


def test_a_script_that_raises_in_mid_pass_says_what_python_says_and_is_recorded(run, plain):
    text = TRAIN + "\n    steps(Broken, num_workers=0)\n"
    expected, ran = plain(text), run(text)
    assert (ran.code, ran.out, ran.err) == (1, "", expected.err)
    recording = ran.recording
    assert (recording.end.exit_code, recording.end.how) == (1, "raised")
    assert [end.how for end in recording.epoch_ends] == ["raised"]
    assert "LookupError: nine" in [event.detail.get("error") for event in recording.events]


def test_a_forking_script_with_its_own_handlers_records_its_own_process_only(run, tmp_path):
    text = (
        TRAIN
        + """
    import os, signal
    said = []
    signal.signal(signal.SIGUSR1, lambda number, frame: said.append(number))
    steps()
    pid = os.fork()
    steps()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    os.kill(os.getpid(), signal.SIGUSR1)
    print(said == [signal.SIGUSR1])
    """
    )
    ran = run(text)
    assert (ran.code, ran.out) == (0, "True\n")
    assert [path.name for path in ran.recordings] == ["run.jsonl"]
    assert len(ran.recording.epochs) == 2
    assert ran.recording.notes == ()


def test_every_rank_of_torchrun_has_its_recording(run, tmp_path, write):
    write(TRAIN + "\n    steps()\n", "ranked.py")
    arguments = ("--nproc-per-node", "2", "--master-port", "0", "ranked.py")
    launch = "import runpy; runpy.run_module('torch.distributed.run', run_name='__main__', alter_sys=True)"
    ran = run(launch, *arguments)
    assert ran.code == 0, ran.err
    assert sorted(path.name for path in ran.recordings) == ["run.jsonl", "run.rank1.jsonl"]
    assert [(load(path).run.rank, len(load(path).steps)) for path in ran.recordings] == [(0, 4), (1, 4)]


def test_a_second_training_of_the_same_rank_gets_a_file_of_its_own(run):
    text = (
        TRAIN
        + """
    import os
    steps()
    if "AGAIN" not in os.environ:
        os.environ["AGAIN"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.argv])
    sys.exit(5)
    """
    )
    ran = run(text)
    assert ran.code == 5
    first, second = ran.recordings
    assert (first.name, second.name.startswith("run.pid")) == ("run.jsonl", True)
    assert load(second).end.exit_code == 5
    assert load(first).end is None
    assert os.path.getsize(first) > 0


def test_a_script_with_our_own_loader_is_recorded_too(run, tmp_path):
    make_shards(tmp_path / "shards", REID, samples=12, shards=1, scale=0.1)
    text = """
        import penstock
        if __name__ == "__main__":
            train = penstock.Loader("shards/*.tar", {"meta": penstock.Json(".json")}, batch_size=4, num_workers=1)
            print([len(batch["__key__"]) for batch in train])
    """
    ran = run(text)
    assert (ran.out, ran.err, ran.code) == ("[4, 4, 4]\n", "", 0)
    assert [(loader.type, loader.name) for loader in ran.recording.loaders.values()] == [("penstock", "train")]
    assert len(ran.recording.steps) == 3


def test_a_script_that_watches_itself_is_recorded_by_the_run_and_told_so(run, tmp_path):
    text = """
        import penstock
        from torch.utils.data import DataLoader
        with penstock.watch(DataLoader(range(12), batch_size=4), record="mine.jsonl") as batches:
            print([len(batch) for batch in batches])
    """
    ran = run(text)
    assert (ran.out, ran.code) == ("[4, 4, 4]\n", 0)
    assert "record cannot be set now" in ran.err
    assert [step.samples for step in ran.recording.steps] == [4, 4, 4]
    assert not (tmp_path / "mine.jsonl").exists()


def test_a_loader_that_is_first_imported_when_the_watching_has_begun_is_watched_too(run):
    ran = run(
        TRAIN
        + """
    class Numbers:
        def __len__(self):
            return 10

        def __getitem__(self, index):
            return index

    if __name__ == "__main__":
        steps()
        assert "penstock.loader" not in sys.modules
        import penstock
        print(sum(1 for _ in penstock.Loader(Numbers(), batch_size=2, num_workers=0)))
    """
    )
    assert (ran.code, ran.out.split()) == (0, ["5"]), ran.err
    steps = [step.loader for step in ran.recording.steps]
    assert (steps.count(0), steps.count(1)) == (4, 5)
    assert ran.recording.loaders[1].type == "penstock"


STATEFUL = """
    import sys
    import torch
    from torch.utils.data import IterableDataset

    torch.manual_seed(0)

    class Stream(IterableDataset):
        def __iter__(self):
            yield from torch.arange(12.0)[:, None]

    def made(dataset, **settings):
        from torchdata.stateful_dataloader import StatefulDataLoader
        return StatefulDataLoader(dataset, batch_size=3, **settings)
"""


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("first", ["", "for _ in torch.utils.data.DataLoader(range(2)): pass"], ids=["first", "late"])
def test_torchdata_s_loader_is_watched_with_its_workers(run, first):
    pytest.importorskip("torchdata")
    ran = run(
        STATEFUL
        + f"""
    {first}
    loader = made(torch.arange(12.0)[:, None], num_workers=2, persistent_workers=True)
    got = [[batch.flatten().tolist() for batch in loader] for epoch in range(2)]
    assert got[0] == got[1] and sum(map(sum, got[0])) == 66, got
    loader.state_dict()
    """
    )
    assert ran.code == 0, ran.err
    recording = ran.recording
    number = max(recording.loaders)
    passes = [step.epoch for step in recording.steps if step.loader == number]
    assert (passes.count(0), passes.count(1)) == (4, 4)
    fetches = [fetch for fetch in recording.fetches if fetch.loader == number]
    assert sorted((fetch.epoch, fetch.batch, fetch.samples) for fetch in fetches) == [
        (epoch, batch, 3) for epoch in range(2) for batch in range(4)
    ]
    assert {fetch.worker for fetch in fetches} == {0, 1}
    assert not [event for event in recording.events if event.what == "watcher_failed"]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_of_torchdata_s_is_counted_and_its_state_is_the_same_as_without_us(run, plain, workers):
    pytest.importorskip("torchdata")
    script = (
        STATEFUL
        + f"""
    loader = made(Stream(), num_workers={workers})
    for at, batch in enumerate(loader):
        if at == 1:
            print(sorted(str(item) for item in loader.state_dict().items()))
    """
    )
    ran = run(script)
    assert ran.code == 0, ran.err
    assert ran.out == plain(script).out
    assert [fetch.samples for fetch in ran.recording.fetches] == [3, 3, 3, 3]
