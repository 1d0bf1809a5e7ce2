"""Every command in every terminal: encodings, narrow ones, pipes that are closed, disks that are full, Ctrl-C.

The commands are run by real processes. To keep their number small, one process runs many commands in turn; the test
with a process for each is slow.
"""

import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from penstock.cli import console, main
from penstock.errors import StorageError
from penstock.testing import REID, make_shards

ENCODINGS = ("gbk", "cp1252", "latin-1", "ascii", "utf-8")
FAST = (
    ("doctor",),
    ("doctor", "--script", "train.py"),
    ("diagnose", "a.jsonl"),
    ("diagnose", "--format", "md", "a.jsonl"),
    ("diagnose", "--json", "a.jsonl"),
    ("plan", "a.jsonl"),
    ("plan", "--format", "md", "a.jsonl"),
    ("plan", "--json", "a.jsonl"),
    ("plan", "a.jsonl", "--nodes", "2", "--gpus-per-node", "2"),
    ("compare", "a.jsonl", "b.jsonl"),
    ("compare", "--json", "a.jsonl", "b.jsonl"),
    ("report", "a.jsonl", "-o", "a.html"),
    ("report", "a.jsonl", "-o", "a.md"),
    ("report", "a.jsonl", "-o", "a.json"),
    ("verify", "--history"),
    ("verify", "--history", "--json"),
    ("shards", "ls", "shards"),
    ("shards", "index", "shards"),
    ("shards", "check", "shards"),
    ("shards", "pack", "shards", "packed", "--arrays", "raw", "--dry-run"),
    ("sweep", "made:step", "--batch-sizes", "2,4", "--duration", "0.01", "--batch-size", "2"),
)
SLOW = (
    ("probe", "decode", "--duration", "2"),
    (
        "bench",
        "shards",
        "--repeats",
        "1",
        "--num-workers",
        "1",
        "--duration",
        "0.1",
        "--batch-size",
        "1",
        "--max-samples",
        "4",
    ),
    ("tune", "made:dataset", "--batch-size", "4", "--duration", "3"),
    ("plan", "--dataset", "made:dataset", "--batch-size", "4"),
    ("run", "-o", "run.jsonl", "train.py"),
    ("shards", "pack", "shards", "packed"),
)
NAMES = [*main.COMMANDS, *(f"shards {name}" for name in main.SHARDS_COMMANDS)]
HELP = tuple((*name.split(), "--help") for name in NAMES)
RUN_ALL = """
import json, sys
from penstock.cli.main import main
for arguments in json.loads(sys.argv[1]):
    sys.argv[1:] = arguments
    try:
        main()
    except SystemExit as end:
        print("ended", json.dumps(arguments), end.code, flush=True)
"""


@pytest.fixture
def folder(tmp_path, record):
    """Return a folder with two recordings, a script and shards whose names are not ASCII."""
    record("a.jsonl", wait_s=0.03, workers=0, name="训练", dataset="Bilder·ß")
    record("b.jsonl", wait_s=0.01)
    (tmp_path / "train.py").write_text("from torch.utils.data import DataLoader\nprint(DataLoader(list(range(8))))\n")
    (tmp_path / "made.py").write_text(
        "def step():\n    return lambda batch: sum(range(500)), lambda size: size\n"
        "def dataset():\n    return list(range(64))\n"
    )
    make_shards(tmp_path / "shards", REID, samples=4, scale=0.5)
    return tmp_path


def environment(**changes):
    return {name: value for name, value in {**os.environ, **changes}.items() if value is not None}


def run_all(folder, commands, **changes):
    """Run the commands in turn in one process; return its output as bytes, and the exit codes in order."""
    command = [sys.executable, "-c", RUN_ALL, json.dumps(commands)]
    done = subprocess.run(command, cwd=folder, env=environment(**changes), capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    codes = [int(line.split()[-1]) for line in done.stdout.splitlines() if line.startswith(b"ended")]
    return done, codes


# -- encodings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_commands_print_under_every_encoding(folder, encoding):
    commands = [*FAST, *HELP, ("shards", "--help"), ("--help",), ("nonsense",)]
    done, codes = run_all(folder, commands, PYTHONIOENCODING=encoding)
    assert len(codes) == len(commands)
    assert set(codes) <= {0, 1, 2, 4}
    assert "Traceback" not in done.stderr.decode(encoding)
    assert "findings: " in done.stdout.decode(encoding)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("command", [*FAST, *SLOW], ids=" ".join)
def test_each_command_prints_under_every_encoding(folder, encoding, command):
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *command],
        cwd=folder,
        env=environment(PYTHONIOENCODING=encoding),
        capture_output=True,
        timeout=300,
    )
    assert done.returncode in (0, 1, 4), done.stderr.decode(encoding)
    assert "Traceback" not in done.stderr.decode(encoding)
    done.stdout.decode(encoding)


def test_json_is_the_same_under_every_encoding(folder):
    found = []
    for encoding in ("utf-8", "ascii"):
        command = [sys.executable, "-m", "penstock", "diagnose", "--json", "a.jsonl"]
        done = subprocess.run(command, cwd=folder, env=environment(PYTHONIOENCODING=encoding), capture_output=True)
        found.append(json.loads(done.stdout.decode(encoding)))
    assert found[0] == found[1]


# -- terminals -----------------------------------------------------------------------------------------------------


def in_terminal(folder, commands, *, columns=80, **changes):
    """Run the commands in turn with a terminal for stdout and stderr; return what it shows."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    command = [sys.executable, "-c", RUN_ALL, json.dumps(commands)]
    changes = {"COLUMNS": None, "LINES": None, **changes}
    child = subprocess.Popen(command, cwd=folder, env=environment(**changes), stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    shown = b""
    while select.select([master], [], [], 120)[0]:
        try:
            shown += os.read(master, 65536)
        except OSError:  # the child has ended
            break
    os.close(master)
    assert child.wait(60) == 0
    return shown.decode()


ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def test_tables_and_texts_fit_into_60_columns(folder):
    commands = [command for command in FAST if "md" not in command and "--json" not in command]
    lines = ESCAPE.sub("", in_terminal(folder, commands, columns=60)).replace("\r", "\n").split("\n")
    too_long = [line for line in lines if len(line) > 60 and "ended [" not in line and " written" not in line]
    assert too_long == []


def test_a_dumb_terminal_gets_no_escape_sequences(folder):
    assert "\x1b" not in in_terminal(folder, FAST[:12], TERM="dumb")


def test_no_color_means_no_colours(folder):
    shown = in_terminal(folder, FAST[:12], NO_COLOR="1", TERM="xterm-256color")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9][;m]", shown)


# -- pipes, full disks, unwritable folders --------------------------------------------------------------------------


@pytest.mark.parametrize("command", [("diagnose", "a.jsonl"), ("diagnose", "--json", "a.jsonl"), ("plan", "--help")])
def test_a_closed_pipe_is_not_an_answer(folder, command):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *command], cwd=folder, stdout=writer, stderr=subprocess.PIPE, timeout=60
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (console.BROKEN_PIPE, b"")


def test_a_closed_stdout_changes_nothing(folder):
    done = subprocess.run(["sh", "-c", f"{sys.executable} -m penstock diagnose a.jsonl >&-"], cwd=folder, timeout=60)
    assert done.returncode == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="/dev/full is of Linux")
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_a_full_disk_below_stdout_is_one_line_and_exit_code_3(folder, unbuffered):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "penstock", "diagnose", "a.jsonl"],
            cwd=folder,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    assert (done.returncode, done.stderr.decode()) == (3, "penstock: cannot write: No space left on device\n")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("report", "a.jsonl", "-o", "out.html"), "out.html"),
        (("plan", "a.jsonl", "-o", "out.yaml"), "out.yaml"),
        (("shards", "check", "bad.tar", "--quarantine", "out.jsonl"), "out.jsonl"),
    ],
)
def test_a_full_disk_leaves_the_earlier_result_whole(folder, in_process, monkeypatch, command, name):
    (folder / name).write_text("the earlier result")
    (folder / "bad.tar").write_bytes(b"no tar" * 200)

    def full(self, *arguments, **options):
        if arguments[:1] == ("xb",):
            really_open(self, *arguments, **options).close()
            raise OSError(28, "No space left on device")
        return really_open(self, *arguments, **options)

    really_open = open
    monkeypatch.setattr("penstock.core.write_file.open", full, raising=False)
    ran = in_process(*command)
    assert ran.code == console.FAILED
    assert f"cannot write {name}: No space left on device" in ran.err
    assert (folder / name).read_text() == "the earlier result"
    assert not list(folder.glob(".*.tmp"))


@pytest.mark.parametrize(
    "command", [("report", "a.jsonl", "-o", "no/out.html"), ("plan", "a.jsonl", "-o", "no/p.yaml")]
)
def test_a_missing_folder_is_refused_before_the_result_is_printed(folder, in_process, command):
    ran = in_process(*command)
    assert (ran.code, ran.out) == (2, "")
    assert "No such file or directory. Name a file in a folder that exists" in ran.err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="/dev/full is of Linux")
def test_a_run_whose_recording_cannot_be_written_says_that_nothing_was_recorded(folder, penstock):
    script = "from torch.utils.data import DataLoader\nfor _ in DataLoader(list(range(8))): pass\n"
    (folder / "train.py").write_text(script)
    (folder / "full.jsonl").symlink_to("/dev/full")
    ran = penstock("run", "-o", "full.jsonl", "train.py")
    assert ran.code == 0
    assert "nothing was recorded" in ran.err
    assert "recorded to" not in ran.err
    assert "verdict" not in ran.err


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_packing_into_a_read_only_folder_is_refused(folder, in_process):
    (folder / "packed").mkdir(0o500)
    ran = in_process("shards", "pack", "shards", "packed/new")
    assert (ran.code, ran.err) == (2, "penstock: cannot write to packed/new. Name a folder that may be written to.\n")


@pytest.mark.parametrize(("target", "code"), [("train.py/packed", 2), ("packed", 3)])
def test_packing_to_where_nothing_can_be_written_speaks_of_that_and_not_of_measuring(
    folder, in_process, monkeypatch, target, code
):
    monkeypatch.setattr("shutil.disk_usage", lambda path: shutil._ntuple_diskusage(10**6, 10**6, 0))
    ran = in_process("shards", "pack", "shards", target)
    assert ran.code == code
    assert f"cannot write to {target}" in ran.err
    assert "measure" not in ran.err


def test_packing_goes_on_where_the_storage_cannot_be_measured(folder, in_process, monkeypatch):
    def refuse(path):
        raise StorageError("nothing to measure with")

    monkeypatch.setattr("penstock.cli.shards.pack.probe_storage", refuse)
    ran = in_process("shards", "pack", "shards", "packed")
    assert ran.code == 0
    assert "arrays: raw (as the storage could not be measured; --arrays decides)" in ran.out


# -- progress ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("sweep", "made:step", "--batch-sizes", "2,4", "--duration", "0.6"), "about 1 s left"),
        (("shards", "check", "--decode", "shards"), "checking shards"),
    ],
)
def test_a_terminal_shows_what_is_done_and_the_time_left(folder, command, words):
    shown = ESCAPE.sub("", in_terminal(folder, [command], TERM="xterm"))
    assert words in shown
    assert "/0" not in shown


# -- wrong calls ---------------------------------------------------------------------------------------------------

MISSING = [
    ("diagnose", "no.jsonl"),
    ("plan", "no.jsonl"),
    ("plan", "--probes", "no.json"),
    ("plan", "--dataset", "no:make"),
    ("report", "no.jsonl"),
    ("compare", "no.jsonl", "a.jsonl"),
    ("compare", "a.jsonl", "no.jsonl"),
    ("verify", "no.yaml", "--", "python", "train.py"),
    ("run", "no.py"),
    ("doctor", "no/"),
    ("doctor", "--script", "no.py"),
    ("probe", "storage", "no/"),
    ("bench", "no/"),
    ("tune", "no:make"),
    ("sweep", "no:make"),
    ("shards", "ls", "no/"),
    ("shards", "index", "no/"),
    ("shards", "check", "no/"),
    ("shards", "pack", "no/", "packed"),
]


@pytest.mark.parametrize("command", MISSING, ids=" ".join)
def test_a_missing_input_is_one_line_and_exit_code_2(folder, in_process, command):
    ran = in_process(*command)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("penstock: ")
    assert ran.err.count("\n") == 1
    assert re.search(r"\bno\b", ran.err)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("report", "a.jsonl", "--from", "100", "-o", "t.json"), "the steps of the run end at 3.0 s. Begin earlier"),
        (("report", "a.jsonl", "--from", "1"), "--from and --duration are for traces"),
        (("report", "a.jsonl", "-o", "x.html", "--format", "md"), "x.html is not the name of a file of format md"),
        (("plan", "a.jsonl", "--profile", "fast"), "'--profile': 'fast' is not one of 'balanced', 'speed', 'memory'"),
        (("diagnose", "train.py", "--pattern", "("), "unterminated subpattern at position 0\n"),
        (("diagnose",), "missing argument 'RUN'. See penstock diagnose --help"),
        (("frob",), "no such command 'frob'. Did you mean 'probe'? See penstock --help"),
    ],
)
def test_errors_name_what_is_wrong(folder, in_process, command, words):
    ran = in_process(*command)
    assert ran.code == 2
    assert words in ran.err
    assert "Value error" not in ran.err
    assert "[stage" not in ran.err


def test_a_script_that_never_started_is_not_said_to_need_more_training(folder, penstock):
    ran = penstock("run", "-o", "run.jsonl", "-m", "no_such_module")
    assert ran.code == 1
    assert "ended with exit code 1 before it trained" in " ".join(ran.err.split())
    assert "train for" not in ran.err


# -- Ctrl-C --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "words"), [("shards pack", "Finished shards are kept"), ("tune", "measures again")])
def test_ctrl_c_says_what_a_second_call_does(folder, in_process, monkeypatch, name, words):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("penstock.cli.shards.pack.run_pack", interrupted)
    monkeypatch.setattr("penstock.cli.tune.call_factory", interrupted)
    arguments = ("shards", "packed", "--arrays", "raw") if name == "shards pack" else ("made:dataset",)
    ran = in_process(*name.split(), *arguments)
    assert ran.code == console.INTERRUPTED
    assert ran.err.splitlines()[-1].startswith("penstock: interrupted. ")
    assert words in ran.err


def test_a_real_ctrl_c_ends_without_a_traceback(folder):
    (folder / "endless.py").write_text("import time\ndef step():\n    print('up', flush=True)\n    time.sleep(600)\n")
    child = subprocess.Popen(
        [sys.executable, "-m", "penstock", "sweep", "endless:step"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline() == "up\n"
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == console.INTERRUPTED
    assert err == "penstock: interrupted. What was measured is lost: a second call measures again.\n"


# -- help ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [("--help",), ("shards", "--help"), *HELP], ids=" ".join)
def test_the_help_has_whole_summaries_and_no_types(in_process, command):
    ran = in_process(*command)
    assert not re.search(r"<(int|float|str|path|bool|list)", ran.out)
    assert "..." not in re.sub(r"(\[ARGS\]|[\])}])\.\.\.", "", ran.out)
    assert ran.out.startswith("Usage: penstock")


def test_the_exit_codes_in_the_docs_are_those_of_the_program():
    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| (\d+) \| (.*?) \|$", page, re.MULTILINE))
    assert rows == {str(code): meaning for code, meaning in console.EXIT_CODES.items()}


def test_one_idea_has_one_name(in_process):
    """Options of earlier versions are gone, and what is measured in bytes takes a size with its unit."""
    gone = {"--workers", "--seconds", "--size", "--sizes", "--threads", "--rounds", "--on-bad", "--sample-size"}
    gone |= {"--shard-size", "--folder", "--dataset-size"}
    shown = {option for command in HELP for option in re.findall(r"^ .*?(--[a-z-]+)", in_process(*command).out, re.M)}
    assert not shown & gone


def test_a_recording_that_stopped_before_the_script_is_not_called_whole(folder, capsys):
    from penstock.cli.run import _print_end
    from penstock.watcher.script.runner import ScriptResult

    whole = folder / "a.jsonl"
    cut = folder / "cut.jsonl"
    cut.write_bytes(whole.read_bytes()[:2000])
    whole.write_bytes(whole.read_bytes() + b'{"kind":"end","at_s":3.0}\n')
    cases = ((0, whole, "a.jsonl\n"), (0, cut, ", which ends before the script did\n"), (-9, cut, "cut.jsonl\n"))
    for code, path, end in cases:
        _print_end(ScriptResult(code, (path,)))
        assert capsys.readouterr().err.endswith(end)


# -- the live output of `penstock run` -----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_prints_what_it_waits_for_once_and_then_its_verdict(folder):
    (folder / "train.py").write_text(
        "import time, torch\n"
        "from torch.utils.data import DataLoader\n"
        "class Slow(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 160\n"
        "    def __getitem__(self, index): time.sleep(0.05); return index\n"
        "for batch in DataLoader(Slow(), batch_size=2): pass\n"
    )
    shown = ESCAPE.sub("", in_terminal(folder, [("run", "-o", "run.jsonl", "train.py")], TERM="dumb"))
    lines = [line for line in shown.splitlines() if line.startswith("penstock: ")]
    assert len(lines) == 2
    assert re.match(r"penstock: waiting for data · (9\d|100)% of the time is waiting · \d+(\.\d)? samples/s", lines[0])
    assert lines[1] == "penstock: recorded to run.jsonl"
    assert "[SLOW BATCH" not in shown
