"""Tasks on a real cluster of several nodes, some of which are killed. Many tasks are expressions, run by `eval`."""

import json
import logging
import os
import pickle
import re
import subprocess
import sys
import types
from pathlib import Path

import psutil
import pytest
from tests.support.record_files import labelled_images, write_samples
from tests.support.waiting import wait_until

from penstock.cli import main
from penstock.errors import DecodeError, PenstockError, SettingError, StorageError, WorkerCrash
from penstock.shards.check import check_shards
from penstock.shards.cluster import ray_runner as ray_runner_module
from penstock.shards.cluster.join import join_cluster
from penstock.shards.index import index_path_beside
from penstock.shards.pack.options import PackOptions
from penstock.shards.pack.plan import make_plan
from penstock.shards.pack.run import pack, plan_path
from penstock.shards.pack.sources import find_pack_sources
from penstock.shards.pack.write import finished_report
from penstock.shards.task_pool import use_task_runner
from penstock.testing import SA1B, corrupt, make_shards

KILL = "__import__('os').kill(__import__('os').getpid(), 9)"
MIB = 1 << 20
DEADLINE_S = 60

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(sys.platform != "linux", reason="Ray's own clusters of several nodes on one machine need Linux"),
]


def plan_of(src, **options):
    pack_options = PackOptions(**{"shard_bytes": MIB, **options})
    return make_plan(list(find_pack_sources(str(src), pack_options)), pack_options)


def shards_of(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.tar"))}


def identity(path):
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size


# -- the contract of run_tasks -----------------------------------------------------------------------------------


def test_every_task_gives_its_result_and_all_nodes_work_in_parallel(ray_runner, nodes, tmp_path):
    # each task creates a file named after its node, and waits until there is one for every node
    create_file = f"open({str(tmp_path)!r} + '/' + __import__('ray').get_runtime_context().get_node_id(), 'w').close()"
    count_files = f"(__import__('time').sleep(0.01), len(__import__('os').listdir({str(tmp_path)!r})))[1]"
    count = nodes.node_count
    tasks = [f"({create_file}, next(files for files in iter(lambda: {count_files}, None) if files == {count}))[1]"] * 4
    outcomes = list(ray_runner()(eval, tasks))
    assert [(outcome.result, outcome.error) for outcome in outcomes] == [(count, None)] * 4


def test_errors_are_outcomes_and_penstock_errors_keep_their_fields(ray_runner):
    decode_error = (
        'exec(\'from penstock.errors import DecodeError; raise DecodeError("bad", shard="a.tar", offset=5)\')'
    )
    tasks = ["1 / 0", decode_error, "lambda: 0", "2"]
    outcomes = {outcome.task: outcome for outcome in ray_runner()(eval, tasks)}
    assert type(outcomes["1 / 0"].error) is ZeroDivisionError
    assert type(outcomes[decode_error].error) is DecodeError
    assert outcomes[decode_error].error.where() == {"shard": "a.tar", "offset": 5}
    assert "pickle" in outcomes["lambda: 0"].error.reason
    assert outcomes["2"].result == 2


def test_at_most_workers_tasks_are_in_flight(ray_runner):
    taken = []

    def tasks():
        for number in range(12):
            taken.append(number)
            yield str(number)

    finished = 0
    for outcome in ray_runner()(eval, tasks(), 3):
        finished += 1
        assert len(taken) <= finished + 3
        assert outcome.error is None
    assert finished == len(taken) == 12


def test_without_tasks_there_are_no_outcomes(ray_runner):
    assert list(ray_runner()(eval, [])) == []


def test_warnings_logged_on_a_node_are_logged_in_the_process_of_the_command(ray_runner, caplog):
    warn = "__import__('logging').getLogger('penstock').warning('odd: %s', 'shard')"
    [outcome] = ray_runner()(eval, [warn])
    assert outcome.error is None
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [(logging.WARNING, "odd: shard")]


def test_closing_the_results_early_ends_the_tasks_in_flight(ray_runner, tmp_path):
    # a task that went on would write into a folder that another run may be using by then
    write_pid = f"open({str(tmp_path / 'pid')!r}, 'w').write(str(__import__('os').getpid()))"
    never_end = f"({write_pid}, __import__('threading').Event().wait())"
    results = ray_runner()(eval, ["1", never_end])
    assert next(results).result == 1
    pid = int(wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the task to begin"))
    results.close()
    wait_until(lambda: not psutil.pid_exists(pid), "its worker to end")


# -- nodes that cannot run tasks ---------------------------------------------------------------------------------


def test_a_node_that_sees_another_folder_is_refused_by_name(ray_runner, tmp_path):
    # stands for a folder of the same name on another disk: the file changes before the task runs
    path = tmp_path / "plan.json"
    path.write_bytes(b"of this machine")

    def tasks():
        path.write_bytes(b"of the node")
        yield f"open({str(tmp_path / 'written')!r}, 'w')"

    with pytest.raises(StorageError, match="does not see") as caught:
        list(ray_runner(shared_files=[str(path)])(eval, tasks()))
    assert str(path) in caught.value.reason
    assert "the same folders under the same paths" in caught.value.advice
    assert not (tmp_path / "written").exists()


def test_a_node_with_another_version_is_refused(ray_runner, monkeypatch):
    monkeypatch.setattr(ray_runner_module, "__version__", "0.0.1")
    with pytest.raises(StorageError, match=r"and this machine 0\.0\.1"):
        list(ray_runner()(eval, ["1"]))


def test_a_module_that_a_node_lacks_is_named_in_the_error(ray_runner, monkeypatch):
    module = types.ModuleType("missing_on_nodes")
    exec("def work(task): return task", module.__dict__)
    monkeypatch.setitem(sys.modules, "missing_on_nodes", module)
    with pytest.raises(SettingError, match="missing_on_nodes") as caught:
        list(ray_runner()(module.work, ["1"]))
    assert "on every node" in caught.value.advice


# -- the commands ------------------------------------------------------------------------------------------------


@pytest.fixture
def command(nodes, joined_cluster, tmp_path, monkeypatch, capsys):
    """A function that runs `penstock` with arguments in this process, which has joined the cluster already."""
    nodes.replace_killed()

    def run(*arguments):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["penstock", *map(str, arguments)])
        with pytest.raises(SystemExit) as exited:
            main.main()
        return exited.value.code or 0, *capsys.readouterr()

    return run


def test_pack_writes_the_same_bytes_as_without_ray_and_a_second_run_writes_only_missing_shards(
    command, nodes, tmp_path
):
    make_shards(tmp_path / "src", SA1B, samples=60, shards=3, order="shuffled", scale=0.1)
    options = ["--arrays", "zstd", "--shard-size", "1"]
    local_folder, ray_folder = tmp_path / "local", tmp_path / "ray"
    assert command("shards", "pack", "src", "local", *options)[0] == 0
    code, out, err = command("shards", "pack", "src", "ray", *options, "--ray", nodes.address)
    assert code == 0, err
    assert f"on Ray at {nodes.address}" in err
    assert "60 samples in" in out
    local_shards = shards_of(local_folder)
    assert len(local_shards) > 1
    assert shards_of(ray_folder) == local_shards
    assert (ray_folder / "manifest.json").read_bytes() == (local_folder / "manifest.json").read_bytes()

    missing = ray_folder / "shard-000001.tar"
    missing.unlink()
    before = {name: identity(ray_folder / name) for name in local_shards if name != missing.name}
    assert command("shards", "pack", "src", "ray", *options, "--ray", nodes.address)[0] == 0
    assert shards_of(ray_folder) == local_shards
    assert {name: identity(ray_folder / name) for name in before} == before


@pytest.mark.parametrize("source", ["folders", "parquet"])
def test_records_and_class_folders_are_packed_as_without_ray(command, nodes, tmp_path, source):
    samples = [sample for sample in labelled_images(20) if sample[0].startswith(b"\xff\xd8")]
    src = write_samples(source, tmp_path / "src", samples)
    assert command("shards", "pack", src, "local")[0] == 0
    code, _, err = command("shards", "pack", src, "ray", "--ray", nodes.address)
    assert code == 0, err
    assert shards_of(tmp_path / "ray") == shards_of(tmp_path / "local")
    assert (tmp_path / "ray" / "classes.txt").read_bytes() == (tmp_path / "local" / "classes.txt").read_bytes()


def test_check_finds_the_same_flaws_as_without_ray(ray_runner, tmp_path):
    shards = make_shards(tmp_path, SA1B, samples=8, shards=2, scale=0.05)
    data = shards[1].read_bytes()
    shards[1].write_bytes(corrupt.overwrite(data, data.index(b"\xff\xd8\xff") + 200, bytes(400)))
    paths = [str(path) for path in shards]

    def flaws():
        results = [event for event in check_shards(paths, decode=True, workers=2) if isinstance(event, tuple)]
        assert sum(len(task.samples) for task, _ in results) == 8
        return sorted((flaw.member, flaw.kind, flaw.reason) for _, task_flaws in results for flaw in task_flaws)

    flaws_without_ray = flaws()
    with use_task_runner(ray_runner(shared_files=paths)):
        flaws_on_ray = flaws()
    assert len(flaws_without_ray) == 1
    assert flaws_on_ray == flaws_without_ray


def test_check_and_index_run_on_the_cluster(command, nodes, tmp_path):
    shards = make_shards(tmp_path / "src", SA1B, samples=6, shards=3, scale=0.05)
    code, out, _ = command("shards", "index", "src", "--ray", nodes.address, "--threads", "2")
    assert code == 0
    assert "3 shards indexed, 0 were so already, 0 failed: 6 samples" in out
    assert all(index_path_beside(shard).exists() for shard in shards)
    code, out, _ = command("shards", "check", "src", "--decode", "--ray", nodes.address)
    assert code == 0
    assert "6 samples checked: no flaws" in out


def test_a_process_in_one_cluster_cannot_join_another(nodes, joined_cluster):
    with pytest.raises(SettingError, match="cannot join"), join_cluster("127.0.0.1:1"):
        pass


# -- workers and nodes that die: last, since nodes take long to start ---------------------------------------------


def test_a_task_that_always_kills_its_worker_is_a_worker_crash_and_the_other_tasks_succeed(ray_runner):
    outcomes = {outcome.task: outcome for outcome in ray_runner(retries=1)(eval, ["0", KILL, "2", "3"])}
    crash = outcomes.pop(KILL).error
    assert type(crash) is WorkerCrash
    assert crash.reason.startswith("its worker died 2 times:")
    assert "\n" not in crash.reason
    assert {task: outcome.result for task, outcome in outcomes.items()} == {"0": 0, "2": 2, "3": 3}


class BlockedTask:
    """A task of a plan of which one source file is replaced by a FIFO: its worker blocks in the middle of the shard."""

    def __init__(self, plan, number, folder):
        self.task = list(plan.tasks())[number]
        selection = self.task.selections[0]
        sample = selection.samples[5]
        self.file = Path(selection.path) / (sample.key + sample.parts[0].suffix)
        self.original = self.file.with_suffix(".original")
        self.folder = folder
        self.file.rename(self.original)
        os.mkfifo(self.file)

    def worker_pid(self):
        """Return the process id of the worker, from the name of its temporary file; None until the file exists."""
        names = [path.name for path in self.folder.glob(f".{self.task.name}.*.tmp")]
        return int(re.search(r"(\d+)\.tmp$", names[0])[1]) if names else None

    def restore_file(self):
        """Put the file back, for the next worker; the blocked worker still has the FIFO open."""
        self.original.rename(self.file)


def assert_same_as_packed_on_this_machine(plan, folder, local_folder):
    list(pack(plan, local_folder, workers=2))
    assert len(shards_of(folder)) == 4
    assert shards_of(folder) == shards_of(local_folder)
    assert (folder / "manifest.json").read_bytes() == (local_folder / "manifest.json").read_bytes()
    assert [path.name for path in folder.glob(".*.tmp")] == []


CHILD = """
import json, pickle, sys
from pathlib import Path
from penstock.shards.cluster.join import join_cluster
from penstock.shards.cluster.ray_runner import RayRunner
from penstock.shards.pack.run import pack, plan_path
from penstock.shards.task_pool import use_task_runner

address, plan, folder = sys.argv[1], pickle.loads(Path(sys.argv[2]).read_bytes()), Path(sys.argv[3])
with join_cluster(address) as cluster, use_task_runner(RayRunner(cluster, [str(plan_path(folder))])):
    print(json.dumps([report.name for report in pack(plan, folder)]))
"""


@pytest.fixture
def start_packing(nodes, tmp_path):
    """A function that starts a process that packs on the cluster."""
    started = []

    def start(plan, folder):
        nodes.replace_killed()
        (tmp_path / "child.py").write_text(CHILD)
        (tmp_path / "plan").write_bytes(pickle.dumps(plan))
        command = [sys.executable, tmp_path / "child.py", nodes.address, tmp_path / "plan", folder]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_worker_killed_in_mid_run_loses_only_its_task_and_ray_prints_nothing(start_packing, loose, tmp_path):
    # messages of Ray about the dead worker would be mixed into the JSON of a command
    plan, folder = plan_of(loose), tmp_path / "packed"
    blocked = BlockedTask(plan, 1, folder)
    running = start_packing(plan, folder)
    pid = wait_until(blocked.worker_pid, "the blocked worker")
    blocked.restore_file()
    psutil.Process(pid).kill()
    out, err = running.communicate(timeout=DEADLINE_S)
    assert running.returncode == 0, err
    assert sorted(json.loads(out)) == [task.name for task in plan.tasks()]
    assert err == ""
    assert_same_as_packed_on_this_machine(plan, folder, tmp_path / "local")


def test_the_tasks_of_a_killed_run_end_with_it_and_the_next_run_finishes_them(
    start_packing, ray_runner, loose, tmp_path
):
    plan, folder = plan_of(loose), tmp_path / "packed"
    tasks = list(plan.tasks())
    blocked = BlockedTask(plan, 1, folder)
    running = start_packing(plan, folder)
    pid = wait_until(blocked.worker_pid, "the blocked worker")
    wait_until(lambda: finished_report(tasks[0], folder), "the first shard")
    running.kill()
    wait_until(lambda: not psutil.pid_exists(pid), "the worker to end with the run")
    blocked.restore_file()
    kept = {task.name: identity(folder / task.name) for task in tasks if finished_report(task, folder)}
    assert blocked.task.name not in kept
    with use_task_runner(ray_runner()):
        assert len(list(pack(plan, folder))) == 4
    assert {name: identity(folder / name) for name in kept} == kept
    assert_same_as_packed_on_this_machine(plan, folder, tmp_path / "local")


def test_a_node_killed_in_mid_run_loses_only_its_tasks(ray_runner, nodes, loose, tmp_path):
    plan, folder = plan_of(loose), tmp_path / "packed"
    blocked = BlockedTask(plan, 1, folder)
    with use_task_runner(ray_runner(shared_files=[str(plan_path(folder))])):
        running = pack(plan, folder)
        reports = [next(running)]  # one worker is blocked, the others continue
        pid = wait_until(blocked.worker_pid, "the blocked worker")
        kept = {report.name: identity(folder / report.name) for report in reports}
        blocked.restore_file()
        nodes.kill(nodes.of(pid))
        reports += running
    wait_until(lambda: not psutil.pid_exists(pid), "the worker to end with its node")
    assert sorted(report.name for report in reports) == [task.name for task in plan.tasks()]
    assert {name: identity(folder / name) for name in kept} == kept
    assert_same_as_packed_on_this_machine(plan, folder, tmp_path / "local")


def test_a_cluster_whose_last_node_died_is_an_error_instead_of_a_hang(ray_runner, nodes, monkeypatch):
    runner = ray_runner(node_wait_s=0.2)
    monkeypatch.setattr(ray_runner_module, "POLL_INTERVAL_S", 0.1)
    for node in list(nodes.cluster.worker_nodes):
        nodes.kill(node)
    with pytest.raises(PenstockError, match="no node left") as caught:
        list(runner(eval, ["1"]))
    assert "again" in caught.value.advice
