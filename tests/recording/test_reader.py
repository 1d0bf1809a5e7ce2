"""Loading complete, damaged, compressed and unrelated files."""

import gzip
import os

import pytest

from penstock.errors import RecordingError
from penstock.recording import bounds, reader
from penstock.recording.format import (
    VERSION,
    EndLine,
    EpochEndLine,
    EpochStartLine,
    EventLine,
    FetchLine,
    HopsLine,
    LoaderLine,
    LoaderSetting,
    Machine,
    ProcessLoad,
    RunLine,
    StackSamplesLine,
    StepLine,
    StorageLine,
    SystemLine,
)
from penstock.recording.ranks import load_ranks
from penstock.recording.reader import is_recording, load, require_training_run
from penstock.recording.writer import Recorder

LINES = (
    LoaderLine(
        loader=0,
        name="train",
        type="torch",
        settings={"num_workers": LoaderSetting(requested=8, in_force=4)},
        batches=2,
    ),
    EpochStartLine(loader=0, epoch=0, at_s=0.5),
    StepLine(loader=0, batch=0, at_s=0.5, wait_s=0.1, step_s=0.2, phases={"forward": 0.1}, ready=2, worker=0),
    FetchLine(loader=0, batch=0, worker=-1, at_s=0.4, fetch_s=0.1, samples=8),
    StepLine(loader=0, batch=1, at_s=0.8, wait_s=0.1, step_s=0.2, worker=1, profiled=False),
    StackSamplesLine(loader=0, worker=1, at_s=0.9, samples=20, states={"read": 15, "running": 5}),
    HopsLine(loader=0, at_s=1.0, hops={"read": (1.0, 0.5, 0.25)}, workers=2),
    SystemLine(at_s=1.0, cpu=1.5, processes=(ProcessLoad(cpu=1.0),), pressure={"cpu": 0.5}),
    StorageLine(
        loader=0,
        readers=4,
        read_bytes=4096,
        sequential_alone=1e9,
        sequential_together=2e9,
        random_alone=1e8,
        random_together=3e8,
    ),
    EventLine(what="gc", at_s=1.05, seconds=0.01, detail={"generation": 2}),
    EpochEndLine(loader=0, epoch=0, at_s=1.1),
    EndLine(at_s=1.2),
)
STEP = '{"kind":"step","loader":0,"batch":0,"at_s":1,"wait_s":0,"step_s":0}\n'
HEAD = '{"kind":"run"}\n{"kind":"loader","loader":0}\n'


def record(path, run=None, lines=LINES):
    recorder = Recorder(path, run or RunLine(command=("train.py",), machine=Machine(cores=16)))
    for line in lines:
        recorder.put(line)
    recorder.close()
    return path


@pytest.fixture
def write(tmp_path):
    def write(content):
        path = tmp_path / "run.jsonl"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def test_every_kind_of_line_is_loaded_as_it_was_written(tmp_path):
    loaded = load(record(tmp_path / "run.jsonl"))
    assert loaded.run == RunLine(command=("train.py",), machine=Machine(cores=16))
    assert loaded.loaders == {0: LINES[0]}
    loaded_lines = (
        *loaded.epochs,
        *loaded.steps,
        *loaded.fetches,
        *loaded.stack_samples,
        *loaded.hops,
        *loaded.system,
        *loaded.storage,
        *loaded.events,
        *loaded.epoch_ends,
        loaded.end,
    )
    assert set(map(repr, loaded_lines)) == set(map(repr, LINES[1:]))
    assert loaded.notes == ()


def test_reader_and_bounds_handle_every_kind_of_line():
    kinds = {RunLine, *map(type, LINES)}
    assert set(bounds.CHECKED_NUMBERS) == kinds
    assert len(reader._KINDS) == len(kinds)


def test_a_line_cut_short_at_the_end_is_skipped_and_the_rest_loads(tmp_path):
    path = record(tmp_path / "run.jsonl")
    path.write_bytes(path.read_bytes()[:-8])
    loaded = load(path)
    assert (len(loaded.steps), loaded.end) == (2, None)
    assert loaded.notes == ("1 line skipped: cut short at the end (line 13)",)


def test_a_file_cut_at_any_byte_still_loads(tmp_path):
    path = record(tmp_path / "run.jsonl")
    data = path.read_bytes()
    end_of_first_line = data.index(b"\n")
    for length in range(end_of_first_line, len(data), 7):
        path.write_bytes(data[:length])
        assert load(path).run.machine.cores == 16


def test_blank_lines_are_ignored_without_a_note(write):
    loaded = load(write("\n" + HEAD + "  \n\n" + STEP + "\r\n"))
    assert (len(loaded.steps), loaded.notes) == (1, ())


def test_garbage_lines_are_counted_and_the_first_line_numbers_are_noted(write):
    loaded = load(write(HEAD + "garbage\n" * 5 + STEP + "\x00\xff\n"))
    assert len(loaded.steps) == 1
    assert loaded.notes == ("6 lines skipped: not JSON (line 3; line 4; line 5; …)",)


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ('{"kind":"weather","sun":true}', "1 line skipped: of an unknown kind (line 3: weather)"),
        ('{"kind":["step"]}', "1 line skipped: of an unknown kind (line 3: ['step'])"),
        ("[1,2]", "1 line skipped: of an unknown kind (line 3: None)"),
        ('{"kind":"\\u001b[31m"}', "1 line skipped: of an unknown kind (line 3: \\x1b[31m)"),
        (
            '{"kind":"event","what":3,"at_s":1}',
            "1 line skipped: damaged (line 3: Expected `str`, got `int` - at `$.what`)",
        ),
        (
            '{"kind":"event","at_s":1}',
            "1 line skipped: damaged (line 3: Object missing required field `what`)",
        ),
        ('{"kind":"event","what":"a","at_s":1,"detail":' + "[" * 5000, "1 line skipped: not JSON (line 3)"),
        ('{"kind":"event","what":"a","at_s":NaN}', "1 line skipped: not JSON (line 3)"),
    ],
)
def test_a_line_that_cannot_be_used_is_skipped_and_noted(write, line, note):
    loaded = load(write(HEAD + line + "\n" + STEP))
    assert (len(loaded.steps), loaded.events) == (1, ())
    assert loaded.notes == (note,)


@pytest.mark.parametrize(
    "line",
    [
        STEP.replace('"at_s":1', '"at_s":-1'),
        STEP.replace('"wait_s":0', '"wait_s":-0.001'),
        STEP.replace('"step_s":0', '"step_s":1e12'),
        STEP.replace('"batch":0', '"batch":-5'),
        STEP.replace('"batch":0', '"batch":123456789012345678901234567890'),
        STEP.replace("}", ',"phases":{"forward":-1}}'),
        '{"kind":"system","at_s":1,"seconds":0}\n',
        '{"kind":"system","at_s":1,"processes":[{"cpu":-3}]}\n',
        '{"kind":"hops","loader":0,"at_s":1,"hops":{"read":[1,-1,1]}}\n',
        '{"kind":"end","at_s":-3}\n',
    ],
)
def test_a_line_with_an_impossible_number_is_skipped(write, line):
    loaded = load(write(HEAD + line))
    assert (loaded.steps, loaded.system, loaded.hops, loaded.end) == ((), (), (), None)
    assert loaded.notes == ("1 line skipped: a time or a number that is impossible (line 3)",)


def test_unknown_fields_are_ignored(write):
    loaded = load(write(HEAD + STEP.replace("}", ',"colour":"red"}')))
    assert (len(loaded.steps), loaded.notes) == (1, ())


@pytest.mark.parametrize(
    "line",
    [f'{{"kind":"run","version":{VERSION + 1}}}\n', f'{{"kind":"run","version":{VERSION + 1},"rank":"first"}}\n'],
)
def test_a_newer_recording_is_refused_with_advice(write, line):
    with pytest.raises(RecordingError, match="newer penstock") as caught:
        load(write(line + STEP))
    assert caught.value.advice == "Update penstock to read it"


def test_a_clock_that_went_back_is_noted_and_no_line_is_dropped(write):
    steps = "".join(STEP.replace('"at_s":1', f'"at_s":{at_s}') for at_s in (10, 11, 4, 5))
    loaded = load(write(HEAD + steps + '{"kind":"system","at_s":9}\n{"kind":"system","at_s":8.5}\n'))
    assert (len(loaded.steps), len(loaded.system)) == (4, 2)
    assert loaded.notes == ("the clock went back 2×, by up to 7 s",)


def test_steps_of_two_overlapping_epochs_are_not_reported_as_a_clock_that_went_back(write):
    other = STEP.replace('"loader":0', '"loader":0,"pass":1').replace('"at_s":1', '"at_s":0.5')
    assert load(write(HEAD + STEP + other)).notes == ()


def test_without_the_first_line_the_rest_is_still_loaded(write):
    loaded = load(write(STEP))
    assert loaded.run == RunLine()
    assert loaded.loaders == {0: LoaderLine(loader=0)}
    assert loaded.notes == (
        "the first line is missing: machine and command are not known",
        "loaders named but not described: 1, the first is number 0",
    )


def test_two_runs_in_one_file_are_noted(write):
    loaded = load(write('{"kind":"run","pid":1}\n{"kind":"run","pid":2}\n'))
    assert loaded.run.pid == 1
    assert loaded.notes == ("2 runs have written to this file; their lines are mixed",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is empty"),
        (b"\n\n", "it is empty"),
        (bytes(range(256)) * 100, "none of its lines"),
        (b"\x00" * 5000, "none of its lines"),
        (b"[DATA LOAD] Recent 50\n" * 20, "none of its lines"),
        (gzip.compress(b"", mtime=0), "it is empty"),
        (b"\x1f\x8b", "none of its lines"),
    ],
)
def test_a_file_that_is_not_a_recording_is_refused(write, content, message):
    with pytest.raises(RecordingError, match=message):
        load(write(content))


def test_a_long_file_of_another_format_is_refused_early(write, monkeypatch):
    decoded = []
    real_method = reader._LineCollector._decode_leniently
    monkeypatch.setattr(
        reader._LineCollector,
        "_decode_leniently",
        lambda self, number, *rest: decoded.append(number) or real_method(self, number, *rest),
    )
    with pytest.raises(RecordingError, match="none of its lines"):
        load(write("loss 0.3\n" * 5000))
    assert len(decoded) == reader.UNKNOWN_LINES_MAX


def test_a_missing_file_or_a_folder_raises_a_recording_error(tmp_path):
    with pytest.raises(RecordingError, match="No such file"):
        load(tmp_path / "none.jsonl")
    with pytest.raises(RecordingError, match=r"cannot read .*: (Is a directory|Permission denied)"):
        load(tmp_path)
    with pytest.raises(RecordingError, match="null"):
        load("a\0b")


def test_a_compressed_recording_loads_under_any_name(tmp_path):
    plain = record(tmp_path / "run.jsonl")
    packed = tmp_path / "other.name"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert load(packed) == load(plain)


def test_a_compressed_recording_cut_short_loads_up_to_the_cut(tmp_path):
    steps = [StepLine(loader=0, batch=batch, at_s=batch / 7, wait_s=0.01, step_s=0.09) for batch in range(5000)]
    plain = record(tmp_path / "run.jsonl", lines=(LINES[0], *steps))
    packed = gzip.compress(plain.read_bytes())
    plain.write_bytes(packed[: len(packed) // 2])
    loaded = load(plain)
    assert 2000 < len(loaded.steps) < 3000
    assert "damaged or cut short" in loaded.notes[-1]


def test_concatenated_compressed_recordings_load_as_one(tmp_path):
    plain = record(tmp_path / "run.jsonl")
    packed = tmp_path / "run.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()[:200]) + gzip.compress(plain.read_bytes()[200:]))
    assert load(packed) == load(plain)


def test_too_large_files_are_refused_before_reading_and_while_inflating(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "FILE_BYTES_MAX", 1 << 16)
    sparse = tmp_path / "sparse.jsonl"
    with sparse.open("wb") as file:
        file.truncate((1 << 16) + 1)
    with pytest.raises(RecordingError, match="larger than"):
        load(sparse)
    bomb = tmp_path / "bomb.jsonl.gz"
    bomb.write_bytes(gzip.compress(HEAD.encode() + b"\n" * (1 << 17)))
    assert bomb.stat().st_size < 10_000
    with pytest.raises(RecordingError, match="larger than"):
        load(bomb)


def test_a_line_that_is_too_long_is_skipped_and_the_next_one_is_read(write, monkeypatch):
    monkeypatch.setattr(reader, "LINE_BYTES_MAX", 1000)
    too_long = '{"kind":"event","what":"' + "a" * 4321 + '","at_s":1}\n'
    shorter = STEP[:-2] + " " * (999 - len(STEP)) + "}\n"
    assert len(shorter) == 999
    exact = STEP[:-2] + " " * (1000 - len(STEP)) + "}\n"
    loaded = load(write(HEAD + too_long + shorter + exact + too_long + STEP + "x" * 3000))
    assert len(loaded.steps) == 3
    assert loaded.notes == ("3 lines skipped: longer than 0 MiB (line 3; line 6; line 8)",)


def test_a_recording_is_recognised_by_its_first_bytes(tmp_path, write):
    path = record(tmp_path / "other.jsonl")
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert is_recording(path)
    assert is_recording(packed)
    for content in (b"", b"[DATA LOAD] Recent 50", b'{"loss": 3}', b"\x1f\x8b", gzip.compress(b"loss 3")):
        assert not is_recording(write(content))
    assert not is_recording(tmp_path)
    assert not is_recording(tmp_path / "none")


def test_garbage_collection_is_enabled_again_after_success_and_after_an_error(tmp_path):
    import gc

    load(record(tmp_path / "run.jsonl"))
    with pytest.raises(RecordingError):
        load(tmp_path)
    assert gc.isenabled()


def record_ranks(folder, count, name="run{}.jsonl", **fields):
    """Record a run of several ranks, a file for each; return the path of rank 0."""
    for rank in range(count):
        path = folder / name.format(f".rank{rank}" if rank else "")
        record(path, RunLine(rank=rank, world_size=count, began_unix_s=1e9 + rank, **fields))
    return folder / name.format("")


@pytest.mark.parametrize("name", ["run{}.jsonl", "a.b[1]{}.jsonl", "bare{}"])
def test_recordings_of_other_ranks_in_the_folder_are_loaded_in_order(tmp_path, name):
    found = load_ranks(record_ranks(tmp_path, 12, name))
    assert [recording.run.rank for recording in found] == list(range(12))
    assert found[0].notes == ()


def test_compressed_recordings_of_other_ranks_are_found(tmp_path):
    for path in sorted(record_ranks(tmp_path, 3).parent.iterdir()):
        (tmp_path / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert [recording.run.rank for recording in load_ranks(tmp_path / "run.jsonl.gz")] == [0, 1, 2]


def test_files_with_other_names_are_not_loaded_as_ranks(tmp_path):
    path = record_ranks(tmp_path, 1)
    for name in ("run.rankA.jsonl", "run2.rank1.jsonl", "run.rank1.html"):
        (tmp_path / name).write_text("x")
    (found,) = load_ranks(path)
    assert found == load(path)


def test_missing_and_broken_ranks_are_noted(tmp_path):
    path = record_ranks(tmp_path, 4)
    (tmp_path / "run.rank1.jsonl").unlink()
    (tmp_path / "run.rank3.jsonl").write_bytes(b"")
    found = load_ranks(path)
    assert [recording.run.rank for recording in found] == [0, 2]
    assert "run.rank3.jsonl is not a recording: it is empty" in found[0].notes[0]
    assert found[0].notes[1] == "the recordings of 2 of 4 ranks are missing"


def test_a_rank_of_an_earlier_run_is_left_out_and_noted(tmp_path):
    path = record_ranks(tmp_path, 2)
    record(tmp_path / "run.rank2.jsonl", RunLine(rank=2, world_size=4, began_unix_s=1e9))
    record(tmp_path / "run.rank1.jsonl", RunLine(rank=1, world_size=2, began_unix_s=1e9 - 86400))
    (found,) = load_ranks(path)
    assert found.notes == (
        "run.rank1.jsonl is of another run and was left out",
        "run.rank2.jsonl is of another run and was left out",
        "the recordings of 1 of 2 ranks are missing",
    )


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_a_recording_can_be_loaded_from_a_pipe(tmp_path):
    import threading

    plain = record(tmp_path / "run.jsonl")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(plain.read_bytes()))
    writer.start()
    assert load(pipe) == load(plain)
    writer.join()


def test_the_recording_of_a_probe_is_marked_and_refused_as_a_training_run(tmp_path):
    for probe in ("", "compute"):
        Recorder(tmp_path / "run.jsonl", RunLine(probe=probe)).close()
        found = load(tmp_path / "run.jsonl")
        assert found.run.probe == probe
        if probe:
            with pytest.raises(RecordingError, match=r"of a probe \(compute\), not of a run"):
                require_training_run(found)
        else:
            require_training_run(found)
