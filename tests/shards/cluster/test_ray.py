"""Tasks on a real cluster of several nodes, which are killed. As work often `eval`: tasks are expressions."""

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
from tests.support.waiting import wait_until

from penstock.cli import main
from penstock.errors import DecodeError, PenstockError, SettingError, StorageError, WorkerCrash
from penstock.shards.check import check_shards
from penstock.shards.cluster import ray_runner as cluster_run
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
    chosen = PackOptions(**{"shard_bytes": MIB, **options})
    return make_plan(list(find_pack_sources(str(src), chosen)), chosen)


def shards_of(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.tar"))}


def identity(path):
    facts = path.stat()
    return facts.st_ino, facts.st_mtime_ns, facts.st_size


# -- the contract of run_tasks -----------------------------------------------------------------------------------


def test_every_task_has_its_result_and_the_nodes_work_side_by_side(ray_runner, nodes, tmp_path):
    """Each task waits until there are as many nodes at work as the cluster has."""
    come = f"open({str(tmp_path)!r} + '/' + __import__('ray').get_runtime_context().get_node_id(), 'w').close()"
    look = f"(__import__('time').sleep(0.01), len(__import__('os').listdir({str(tmp_path)!r})))[1]"
    tasks = [f"({come}, next(seen for seen in iter(lambda: {look}, None) if seen == {nodes.working}))[1]"] * 4
    found = list(ray_runner()(eval, tasks))
    assert [(done.result, done.error) for done in found] == [(nodes.working, None)] * 4


def test_errors_are_results_and_ours_keep_their_fields(ray_runner):
    ours = 'exec(\'from penstock.errors import DecodeError; raise DecodeError("bad", shard="a.tar", offset=5)\')'
    found = {done.task: done for done in ray_runner()(eval, ["1 / 0", ours, "lambda: 0", "2"])}
    assert type(found["1 / 0"].error) is ZeroDivisionError
    assert type(found[ours].error) is DecodeError
    assert found[ours].error.where() == {"shard": "a.tar", "offset": 5}
    assert "pickle" in found["lambda: 0"].error.reason
    assert found["2"].result == 2


def test_tasks_are_taken_only_when_there_is_room(ray_runner):
    taken = []

    def tasks():
        for number in range(12):
            taken.append(number)
            yield str(number)

    finished = 0
    for done in ray_runner()(eval, tasks(), 3):
        finished += 1
        assert len(taken) <= finished + 3
        assert done.error is None
    assert finished == len(taken) == 12


def test_no_task_is_no_work(ray_runner):
    assert list(ray_runner()(eval, [])) == []


def test_what_is_logged_on_a_node_is_heard_here(ray_runner, caplog):
    warn = "__import__('logging').getLogger('penstock').warning('odd: %s', 'shard')"
    [done] = ray_runner()(eval, [warn])
    assert done.error is None
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [(logging.WARNING, "odd: shard")]


def test_a_consumer_that_stops_early_ends_its_tasks(ray_runner, tmp_path):
    """A task that goes on would write into a folder that is somebody else's by then."""
    tell = f"open({str(tmp_path / 'pid')!r}, 'w').write(str(__import__('os').getpid()))"
    stay = f"({tell}, __import__('threading').Event().wait())"
    results = ray_runner()(eval, ["1", stay])
    assert next(results).result == 1
    pid = int(wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the task to begin"))
    results.close()
    wait_until(lambda: not psutil.pid_exists(pid), "its worker to end")


# -- nodes that cannot take part ---------------------------------------------------------------------------------


def test_a_node_that_sees_another_folder_is_refused_by_name(ray_runner, tmp_path):
    """A file that is another one when the task comes is what a folder of the same name on another disk looks like."""
    path = tmp_path / "plan.json"
    path.write_bytes(b"ours")

    def tasks():
        path.write_bytes(b"theirs")
        yield f"open({str(tmp_path / 'written')!r}, 'w')"

    with pytest.raises(StorageError, match="does not see") as caught:
        list(ray_runner(shared_files=[str(path)])(eval, tasks()))
    assert str(path) in caught.value.reason
    assert "the same folders under the same paths" in caught.value.advice
    assert not (tmp_path / "written").exists()


def test_a_node_with_another_version_is_refused(ray_runner, monkeypatch):
    monkeypatch.setattr(cluster_run, "__version__", "0.0.1")
    with pytest.raises(StorageError, match=r"and this machine 0\.0\.1"):
        list(ray_runner()(eval, ["1"]))


def test_a_node_that_lacks_a_package_is_a_clear_error(ray_runner, monkeypatch):
    module = types.ModuleType("only_here")
    exec("def work(task): return task", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", module)
    with pytest.raises(SettingError, match="only_here") as caught:
        list(ray_runner()(module.work, ["1"]))
    assert "on every node" in caught.value.advice


# -- the commands ------------------------------------------------------------------------------------------------


@pytest.fixture
def command(nodes, member, tmp_path, monkeypatch, capsys):
    """The program in this process, which is in the cluster already."""
    nodes.fill_up()

    def run(*arguments):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["penstock", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main.main()
        return ended.value.code or 0, *capsys.readouterr()

    return run


def test_pack_gives_the_same_bytes_as_here_and_a_second_run_touches_only_what_is_missing(command, nodes, tmp_path):
    make_shards(tmp_path / "src", SA1B, samples=60, shards=3, order="shuffled", scale=0.1)
    options = ["--arrays", "zstd", "--shard-size", "1"]
    assert command("shards", "pack", "src", "here", *options)[0] == 0
    code, out, err = command("shards", "pack", "src", "there", *options, "--ray", nodes.address)
    assert code == 0, err
    assert f"on Ray at {nodes.address}" in err
    assert "60 samples in" in out
    here, there = shards_of(tmp_path / "here"), shards_of(tmp_path / "there")
    assert len(here) > 1
    assert here == there
    manifests = [(tmp_path / name / "manifest.json").read_bytes() for name in ("here", "there")]
    assert manifests[0] == manifests[1]

    missing = tmp_path / "there" / "shard-000001.tar"
    missing.unlink()
    before = {name: identity(tmp_path / "there" / name) for name in there if name != missing.name}
    assert command("shards", "pack", "src", "there", *options, "--ray", nodes.address)[0] == 0
    assert shards_of(tmp_path / "there") == here
    assert {name: identity(tmp_path / "there" / name) for name in before} == before


def test_check_finds_the_same_flaws_as_here(ray_runner, tmp_path):
    shards = make_shards(tmp_path, SA1B, samples=8, shards=2, scale=0.05)
    data = shards[1].read_bytes()
    shards[1].write_bytes(corrupt.overwrite(data, data.index(b"\xff\xd8\xff") + 200, bytes(400)))
    paths = [str(path) for path in shards]

    def flaws():
        events = list(check_shards(paths, decode=True, workers=2))
        pieces = [event for event in events if isinstance(event, tuple)]
        assert sum(len(piece.samples) for piece, _ in pieces) == 8
        return sorted((flaw.member, flaw.kind, flaw.reason) for _, found in pieces for flaw in found)

    here = flaws()
    with use_task_runner(ray_runner(shared_files=paths)):
        there = flaws()
    assert len(here) == 1
    assert there == here


def test_check_and_index_take_the_cluster_too(command, nodes, tmp_path):
    shards = make_shards(tmp_path / "src", SA1B, samples=6, shards=3, scale=0.05)
    code, out, _ = command("shards", "index", "src", "--ray", nodes.address, "--threads", "2")
    assert code == 0
    assert "3 shards indexed, 0 were so already, 0 failed: 6 samples" in out
    assert all(index_path_beside(shard).exists() for shard in shards)
    code, out, _ = command("shards", "check", "src", "--decode", "--ray", nodes.address)
    assert code == 0
    assert "6 samples checked: no flaws" in out


def test_a_process_in_one_cluster_cannot_join_another(nodes, member):
    with pytest.raises(SettingError, match="cannot join"), join_cluster("127.0.0.1:1"):
        pass


# -- workers and nodes that die: last, since nodes take long to start ---------------------------------------------


def test_a_task_that_keeps_killing_its_worker_is_named_and_costs_nothing_else(ray_runner):
    found = {done.task: done for done in ray_runner(retries=1)(eval, ["0", KILL, "2", "3"])}
    crash = found.pop(KILL).error
    assert type(crash) is WorkerCrash
    assert crash.reason.startswith("its worker died, 2 times over")
    assert "\n" not in crash.reason
    assert {task: done.result for task, done in found.items()} == {"0": 0, "2": 2, "3": 3}


class Held:
    """A file of the source becomes a FIFO: the worker that comes to it stands still in the middle of its shard."""

    def __init__(self, plan, number, folder):
        self.task = list(plan.tasks())[number]
        take = self.task.selections[0]
        self.file = Path(take.path) / (take.samples[5].key + take.samples[5].parts[0].suffix)
        self.aside = self.file.with_suffix(".aside")
        self.folder = folder
        self.file.rename(self.aside)
        os.mkfifo(self.file)

    def worker(self):
        """Its process id, as soon as it is there."""
        names = [path.name for path in self.folder.glob(f".{self.task.name}.*.tmp")]
        return int(re.search(r"(\d+)\.tmp$", names[0])[1]) if names else None

    def release(self):
        """Whoever comes next finds the file; the one that stands there does not see it any more."""
        self.aside.rename(self.file)


def assert_like_a_pack_of_this_machine(plan, folder, other):
    list(pack(plan, other, workers=2))
    assert len(shards_of(folder)) == 4
    assert shards_of(folder) == shards_of(other)
    assert (folder / "manifest.json").read_bytes() == (other / "manifest.json").read_bytes()
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
def packing(nodes, tmp_path):
    """A process of its own that packs on the cluster."""
    started = []

    def start(plan, folder):
        nodes.fill_up()
        (tmp_path / "child.py").write_text(CHILD)
        (tmp_path / "plan").write_bytes(pickle.dumps(plan))
        command = [sys.executable, tmp_path / "child.py", nodes.address, tmp_path / "plan", folder]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_worker_killed_in_mid_run_costs_its_task_only_and_ray_says_no_word(packing, loose, tmp_path):
    """What Ray prints of dead workers would lie in the middle of a command's JSON."""
    plan, folder = plan_of(loose), tmp_path / "packed"
    held = Held(plan, 1, folder)
    running = packing(plan, folder)
    pid = wait_until(held.worker, "the worker that stands still")
    held.release()
    psutil.Process(pid).kill()
    out, err = running.communicate(timeout=DEADLINE_S)
    assert running.returncode == 0, err
    assert sorted(json.loads(out)) == [task.name for task in plan.tasks()]
    assert err == ""
    assert_like_a_pack_of_this_machine(plan, folder, tmp_path / "here")


def test_a_run_that_is_killed_takes_its_tasks_along_and_the_next_one_finishes_them(
    packing, ray_runner, loose, tmp_path
):
    plan, folder = plan_of(loose), tmp_path / "packed"
    tasks = list(plan.tasks())
    held = Held(plan, 1, folder)
    running = packing(plan, folder)
    pid = wait_until(held.worker, "the worker that stands still")
    wait_until(lambda: finished_report(tasks[0], folder), "the first shard")
    running.kill()
    wait_until(lambda: not psutil.pid_exists(pid), "the worker to end with the run")
    held.release()
    kept = {task.name: identity(folder / task.name) for task in tasks if finished_report(task, folder)}
    assert held.task.name not in kept
    with use_task_runner(ray_runner()):
        assert len(list(pack(plan, folder))) == 4
    assert {name: identity(folder / name) for name in kept} == kept
    assert_like_a_pack_of_this_machine(plan, folder, tmp_path / "here")


def test_a_node_killed_in_mid_run_costs_its_tasks_only(ray_runner, nodes, loose, tmp_path):
    plan, folder = plan_of(loose), tmp_path / "packed"
    held = Held(plan, 1, folder)
    with use_task_runner(ray_runner(shared_files=[str(plan_path(folder))])):
        running = pack(plan, folder)
        reports = [next(running)]  # while one worker stands still, the others go on
        pid = wait_until(held.worker, "the worker that stands still")
        kept = {report.name: identity(folder / report.name) for report in reports}
        held.release()
        nodes.kill(nodes.of(pid))
        reports += running
    wait_until(lambda: not psutil.pid_exists(pid), "the worker to follow its node")
    assert sorted(report.name for report in reports) == [task.name for task in plan.tasks()]
    assert {name: identity(folder / name) for name in kept} == kept
    assert_like_a_pack_of_this_machine(plan, folder, tmp_path / "here")


def test_a_cluster_without_a_node_that_works_is_an_error_and_no_hang(ray_runner, nodes, monkeypatch):
    runner = ray_runner(node_wait_s=0.2)
    monkeypatch.setattr(cluster_run, "POLL_INTERVAL_S", 0.1)
    for node in list(nodes.cluster.worker_nodes):
        nodes.kill(node)
    with pytest.raises(PenstockError, match="no node left") as caught:
        list(runner(eval, ["1"]))
    assert "again" in caught.value.advice
