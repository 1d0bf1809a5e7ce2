import os
import signal
import subprocess
import sys
import textwrap

import pytest

WAITING = """
    import signal, sys, time
    signal.signal(signal.{name}, lambda number, frame: sys.exit(40 + number))
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def script(tmp_path):
    def write(text):
        (tmp_path / "train.py").write_text(textwrap.dedent(text))

    return write


@pytest.fixture
def started(tmp_path, script):
    """Return a function that starts `penstock run` and waits for the script's first line."""
    running = []

    def start(text):
        script(text)
        command = [sys.executable, "-m", "penstock", "run", "-o", "run.jsonl", "--no-diagnose", "train.py"]
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**os.environ, "TMPDIR": str(tmp_path)},  # a killed process cannot remove its files
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        running.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in running:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_the_help_has_examples(in_process):
    ran = in_process("run", "--help")
    assert ran.code == 0
    for words in ("penstock run train.py --epochs 1", "torch.distributed.run", "Exit code: the script's own"):
        assert words in ran.out


def test_the_scripts_output_is_unchanged_and_penstock_prints_after_it_on_stderr(penstock, script, tmp_path):
    script("import sys; print(sys.argv); print('dying', file=sys.stderr); sys.exit(9)")
    ran = penstock("run", "train.py", "--no-live", "-o", "x", "-m")
    assert ran.code == 9
    assert ran.out == "['train.py', '--no-live', '-o', 'x', '-m']\n"
    first, second, *verdict = ran.err.splitlines()
    (recording,) = tmp_path.glob("penstock-*.jsonl")
    assert (first, second) == ("dying", f"penstock: recorded to {recording.name}")
    assert "undetermined" in verdict[0]


def test_the_verdict_can_be_left_out(penstock, script):
    script("print('done')")
    ran = penstock("run", "-o", "run.jsonl", "--no-diagnose", "train.py")
    assert (ran.code, ran.out, ran.err) == (0, "done\n", "penstock: recorded to run.jsonl\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no full disk at hand")
def test_a_failing_recording_does_not_change_the_exit_code(penstock, script):
    script("print('done'); raise SystemExit(6)")
    ran = penstock("run", "-o", "/dev/full", "train.py")
    assert (ran.code, ran.out) == (6, "done\n")
    assert "cannot record to /dev/full" in ran.err.replace("\n", " ")
    assert ran.err.endswith("penstock: nothing was recorded\n")


def test_a_killed_script_has_its_signal_as_exit_code_after_the_verdict(penstock, script):
    script("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    ran = penstock("run", "-o", "run.jsonl", "train.py")
    assert ran.code == -signal.SIGKILL
    assert ran.err.startswith("penstock: the script was killed by SIGKILL\npenstock: recorded to run.jsonl\n")
    assert "undetermined" in ran.err


@pytest.mark.skipif(not hasattr(signal, "SIGRTMIN"), reason="no signals without a name")
def test_a_signal_without_a_name_is_printed_as_a_number(penstock, script):
    number = signal.SIGRTMIN + 3
    script(f"import os; os.kill(os.getpid(), {number})")
    ran = penstock("run", "-o", "run.jsonl", "--no-diagnose", "train.py")
    assert ran.code == -number
    assert ran.err == f"penstock: the script was killed by signal {number}\npenstock: recorded to run.jsonl\n"


@pytest.mark.skipif(not hasattr(signal, "sigwaitinfo"), reason="no waiting for signals here")
def test_the_exit_code_is_known_even_if_sigchld_is_ignored(script, tmp_path):
    script("import signal, sys; print(signal.getsignal(signal.SIGCHLD).name); sys.exit(5)")
    run = [sys.executable, "-m", "penstock", "run", "-o", "run.jsonl", "--no-diagnose", "train.py"]
    ignoring = f"import os, signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv({run[0]!r}, {run!r})"
    ran = subprocess.run([sys.executable, "-c", ignoring], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (5, "SIG_IGN\n")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP"])
def test_signals_reach_the_scripts_own_handlers(started, name):
    process = started(WAITING.format(name=name))
    number = getattr(signal, name)
    process.send_signal(number)
    assert process.wait(30) == 40 + number


def test_an_unhandled_sigterm_ends_both_processes(started):
    process = started("import time; print('ready', flush=True); time.sleep(60)")
    process.terminate()
    assert process.wait(30) == -signal.SIGTERM
    assert "killed by SIGTERM" in process.stderr.read()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports the death of the parent")
def test_killing_penstock_kills_the_script(started):
    process = started("import time; print('ready', flush=True); time.sleep(60)")
    process.kill()
    assert process.wait(30) == -signal.SIGKILL
    assert process.stdout.read() == ""  # the script's end of the pipe is closed: it has ended


def test_the_script_has_the_standard_input(script, tmp_path):
    script("print(input())")
    command = [sys.executable, "-m", "penstock", "run", "--no-diagnose", "train.py"]
    assert subprocess.run(command, cwd=tmp_path, input="hello\n", capture_output=True, text=True).stdout == "hello\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("none.py",), "there is no script none.py"),
        (("-o", "missing/run.jsonl", "train.py"), "cannot record to missing/run.jsonl"),
        (("-o", ".", "train.py"), "cannot record to ."),
        (("--slow", "-1", "train.py"), "--slow"),
        (("--slow", "0", "train.py"), "is not a positive number of seconds"),
        ((), "SCRIPT"),
    ],
)
def test_invalid_options_are_refused_before_the_script_runs(in_process, script, arguments, words):
    script("print('ran')")
    ran = in_process("run", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err


def test_control_characters_in_a_file_name_are_escaped(penstock, script, tmp_path):
    script("print('done')")
    ran = penstock("run", "--no-diagnose", "-o", "a\x1b[31m.jsonl", "train.py")
    assert ran.err == "penstock: recorded to a\\x1b[31m.jsonl\n"


# -- probes ----------------------------------------------------------------------------------------------------------

TRAINING = """
    import sys, time
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    class Slow(TensorDataset):
        def __getitem__(self, index):
            time.sleep(0.002)
            return super().__getitem__(index)

    def main():
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), 1e-6)
        loader = DataLoader(Slow(torch.ones(32, 4)), batch_size=8, num_workers=1)
        for epoch in range(int(sys.argv[1])):
            for (x,) in loader:
                optimizer.zero_grad()
                model(x).mean().backward()
                optimizer.step()
        {end}

    if __name__ == "__main__":
        main()
"""


def test_a_probe_times_the_step_without_its_data_and_ends_the_script(penstock, script, tmp_path):
    script(TRAINING.format(end="print('trained to the end')"))
    ran = penstock("run", "--probe", "compute", "--duration", "0.3", "-o", "probe.jsonl", "train.py", "100000")
    assert ran.code == 0, ran.err
    assert ran.out == ""
    assert "Traceback" not in ran.err
    before, *after = ran.err.splitlines()
    assert "keep nothing that it saves" in before
    assert after[0] == "penstock: recorded to probe.jsonl"
    text = " ".join(ran.err.split())
    for words in ("with its own data", "alone", "beside 1 busy process ", "With any loader at most"):
        assert words in text
    assert "times as long: `penstock run` shows what it waits for" in text
    for command in ("diagnose", "plan"):
        refused = penstock(command, "probe.jsonl")
        assert refused.code == 2
        assert "the recording of a probe (compute), not of a run" in refused.err


def test_a_script_that_ends_before_the_measurement_has_no_numbers(penstock, script):
    script(TRAINING.format(end="print('trained to the end')"))
    ran = penstock("run", "--probe", "compute", "-o", "probe.jsonl", "train.py", "1")
    assert (ran.code, ran.out) == (3, "trained to the end\n")
    assert "Not all was measured: the script ended before." in ran.err


def test_a_script_that_fails_under_a_probe_keeps_its_exit_code(penstock, script):
    script(TRAINING.format(end="sys.exit(7)"))
    assert penstock("run", "--probe", "compute", "-o", "probe.jsonl", "train.py", "1").code == 7


def test_only_the_step_can_be_probed(in_process, script):
    script("print('ran')")
    ran = in_process("run", "--probe", "storage", "train.py")
    assert (ran.code, ran.out) == (2, "")
    assert "'compute'" in ran.err
