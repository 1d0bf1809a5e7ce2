"""Worker processes and threads."""

import os
import signal
import subprocess
import sys
import time
from multiprocessing import connection
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch  # noqa: F401  # on purpose: workers must not import it, even if the process and the module that start them do
from tests.support.engine_fakes import Copy

from penstock.core.contracts import Task
from penstock.engine.engine import pickle_program
from penstock.engine.shared_memory import SharedMemory
from penstock.engine.worker_main import Prefaulter
from penstock.engine.workers import ProcessWorker, ThreadWorker, WorkerMemory
from penstock.errors import SettingError, WorkerCrash


@pytest.fixture
def memory(leaves_nothing):
    slabs = SharedMemory.create(8192, "slabs")
    memory = WorkerMemory(SharedMemory.create(8192, "arena"), slabs, Prefaulter(slabs, 4096))
    yield memory
    memory.arena.close()
    memory.slabs.close()


@pytest.fixture
def process(memory):
    started, pickled = [], []

    def start(program):
        data, main_path = pickle_program(program)
        return begin(data, main_path)

    def begin(data, main_path=None):
        pickled.append(SharedMemory.from_bytes(data, "program"))
        started.append(ProcessWorker("worker 0", pickled[-1], memory, main_path, None))
        return started[-1]

    start.bytes = begin
    yield start
    for worker in started:
        worker.stop()
        assert worker.join(30)
    for program in pickled:
        program.close()


def task(*samples, number=1):
    return Task(number, 4096, 0, np.array([[slot, sample, 0] for slot, sample in enumerate(samples)], np.int64))


def next_result(worker):
    while not (results := worker.receive()):
        pass
    (result,) = results
    return result


def test_a_process_reads_the_arena_and_writes_the_slab(process, memory):
    memory.arena.view[:8] = (35).to_bytes(8, "little")
    worker = process(Copy())
    worker.send(task(5, 5, number=17))
    result = next_result(worker)
    assert (result.number, result.extras) == (17, [])
    assert result.busy_s > 0
    assert np.frombuffer(bytes(memory.slabs.view[4096:4112]), np.int64).tolist() == [35, 35]


def test_a_worker_process_does_not_import_torch(process):
    assert "torch" in sys.modules
    worker = process(Copy({1: "modules"}))
    worker.send(task(1))
    ((_, _, modules),) = next_result(worker).extras
    assert "tests.support.engine_fakes" in modules
    assert [name for name in modules if name.split(".")[0] in ("torch", "pytest", "cupy", "pandas")] == []


def test_a_killed_process_is_reported_by_its_pipe(process):
    worker = process(Copy())
    worker.receive()
    worker.process.kill()
    assert connection.wait([worker.pipe], 30) == [worker.pipe]
    with pytest.raises(WorkerCrash, match="worker 0 died: killed by SIGKILL"):
        worker.receive()


def test_a_signal_without_a_name_is_reported_by_its_number(process):
    worker = process(Copy())
    worker.receive()
    worker.process.send_signal(signal.SIGRTMIN + 1)
    with pytest.raises(WorkerCrash, match=f"killed by signal {signal.SIGRTMIN + 1}"):
        worker.receive()


def test_an_incomplete_result_is_not_waited_for(process):
    worker = process(Copy({1: "half message"}))
    worker.receive()
    worker.send(task(1))
    assert worker.receive() == []
    worker.process.kill()
    with pytest.raises(WorkerCrash, match="SIGKILL"):
        worker.receive()


def test_a_core_that_does_not_exist_leaves_no_process(memory):
    pickled = SharedMemory.from_bytes(pickle_program(Copy())[0], "program")
    with pytest.raises(OSError, match="Invalid argument"):
        ProcessWorker("worker 0", pickled, memory, None, {1023})
    pickled.close()


def test_sending_to_a_dead_process_is_not_an_error(process):
    worker = process(Copy())
    worker.receive()
    worker.process.kill()
    worker.process.wait()
    worker.send(task(1))
    with pytest.raises(WorkerCrash):
        worker.receive()


def test_a_process_that_dies_at_once_is_reported_by_receive(process, monkeypatch):
    monkeypatch.setattr(sys, "path", [])  # so that it does not find the worker's code
    worker = process.bytes(b"program")
    with pytest.raises(WorkerCrash, match="exit code 1"):
        worker.receive()


def test_a_large_program_is_passed_without_waiting_for_the_process(process, monkeypatch):
    monkeypatch.setattr("penstock.engine.workers._start_code", lambda fd: "import time; time.sleep(3600)")
    stopped = process(Copy(dict.fromkeys(range(1 << 18), "pid")))  # megabytes: no pipe holds that
    assert not stopped.ready
    monkeypatch.undo()
    worker = process(Copy(dict.fromkeys(range(1 << 18), "pid")))
    worker.send(task(1 << 17))
    assert next_result(worker).extras == [(0, "pid", worker.process.pid)]


def test_a_script_that_cannot_be_found_is_reported_on_stderr(process, capfd):
    worker = process.bytes(b"", "/nowhere/train.py")
    with pytest.raises(WorkerCrash, match="exit code 1"):
        worker.receive()
    assert "/nowhere/train.py" in capfd.readouterr().err


def test_a_program_that_cannot_start_ends_the_process_with_its_error_on_stderr(process, capfd):
    worker = process(Copy({"start": "bad"}))
    with pytest.raises(WorkerCrash, match="exit code 1"):
        worker.receive()
    assert "this program cannot start" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("trouble", "reason"), [("fail", "Unpicklable: boom"), ("exit", "SystemExit: enough"), ("lambda", "lambda")]
)
def test_an_error_in_a_task_is_a_bad_sample_and_the_process_continues(process, trouble, reason):
    worker = process(Copy({1: trouble}))
    worker.send(task(1))
    ((slot, name, error),) = next_result(worker).extras
    assert (slot, name) == (0, "!")
    assert reason in error.reason
    worker.send(task(2, number=2))
    assert next_result(worker).number == 2


def test_a_value_that_cannot_be_pickled_makes_only_its_sample_bad(process, memory):
    memory.arena.view[:8] = (35).to_bytes(8, "little")
    worker = process(Copy({1: "lambda", 2: "pid"}))
    worker.send(task(1, 2, 3))
    (slot, name, _), other = next_result(worker).extras
    assert (slot, name) == (0, "!")
    assert other == (1, "pid", worker.process.pid)


def test_a_program_that_a_sample_starts_does_not_keep_the_pipe_open(process):
    worker = process(Copy({1: "start a program"}))
    worker.receive()
    worker.send(task(1))
    ((_, _, pid),) = next_result(worker).extras
    worker.process.kill()
    try:
        assert connection.wait([worker.pipe], 10) == [worker.pipe]
    finally:
        os.kill(pid, signal.SIGKILL)


def test_ctrl_c_does_not_reach_a_worker(process):
    worker = process(Copy())
    worker.receive()
    worker.process.send_signal(signal.SIGINT)
    worker.send(task(1))
    assert next_result(worker).number == 1


def test_a_stuck_process_prints_its_stack(process, capfd, tmp_path):
    worker = process(Copy({1: "stuck once"}, str(tmp_path)))
    worker.receive()
    worker.send(task(1))
    deadline = time.monotonic() + 30
    while not (tmp_path / "seen-1").exists() and time.monotonic() < deadline:
        os.sched_yield()
    error = ""
    while "stuck_in_here" not in error and time.monotonic() < deadline:
        worker.print_stack()
        error += capfd.readouterr().err
    assert "stuck_in_here" in error


PARENT = """
import sys, os
sys.path.insert(0, {here!r})
from tests.support.engine_fakes import Copy
from penstock.engine.workers import ProcessWorker, WorkerMemory
from penstock.engine.engine import pickle_program
from penstock.engine.shared_memory import SharedMemory
from penstock.engine.worker_main import Prefaulter
slabs = SharedMemory.create(8192, "slabs")
memory = WorkerMemory(SharedMemory.create(8192, "arena"), slabs, Prefaulter(slabs, 4096))
worker = ProcessWorker("worker 0", SharedMemory.from_bytes(pickle_program(Copy())[0], "program"), memory, None, None)
worker.receive()
print(worker.process.pid, flush=True)
sys.stdin.read()
"""


def test_a_worker_whose_parent_is_killed_ends():
    program = PARENT.format(here=str(Path(__file__).parents[2]))
    with subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1, text=True) as parent:
        worker = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    _, alive = psutil.wait_procs([worker], timeout=30)
    assert alive == []


SCRIPT = """
import dataclasses, sys
import torch
sys.path.insert(0, {here!r})
from tests.support.engine_fakes import Copy, Numbers, plan, take_all
from penstock.engine.engine import Engine

@dataclasses.dataclass(frozen=True)
class Mine(Copy):
    def run(self, task, arena, slabs):
        return [(int(task.rows[0, 0]), "module", type(self).__module__), *super().run(task, arena, slabs)]

if __name__ == "__main__":
    source = Numbers(16)
    engine = Engine(source, Mine(), plan())
    (values, extras), = take_all(engine, source, [range(16)])
    engine.close()
    print(values == [7 * i for i in range(16)], sorted({{extra[2] for extra in extras}}))
"""


def test_a_program_defined_in_the_users_script_is_found(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(here=str(Path(__file__).parents[2])))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["True", "['__mp_main__']"], done.stderr


def test_a_program_that_cannot_be_pickled_is_refused_with_advice():
    with pytest.raises(SettingError, match="executor='thread'"):
        pickle_program(Copy({1: lambda: None}))


def test_a_program_defined_in_an_interactive_session_is_refused_with_advice(monkeypatch):
    main = sys.modules["__main__"]
    monkeypatch.delattr(main, "__file__", raising=False)
    monkeypatch.setattr(main, "Typed", type("Typed", (Copy,), {"__module__": "__main__"}), raising=False)
    with pytest.raises(SettingError, match="interactive session"):
        pickle_program(main.Typed())


def test_a_thread_returns_the_same_results(memory):
    memory.arena.view[:8] = (35).to_bytes(8, "little")
    results = []
    worker = ThreadWorker(
        "worker 0", Copy({1: "exit"}), memory, lambda sender, result: results.append((sender, result))
    )
    worker.send(task(1, number=4))
    worker.send(task(5, number=5))
    worker.stop()
    assert worker.join(30)
    (_, bad), (sender, good) = results
    assert "SystemExit" in bad.extras[0][2].reason
    assert sender is worker
    assert (good.number, good.extras) == (5, [])
    assert int.from_bytes(memory.slabs.view[4096:4104], "little") == 35
