"""Recording what a training uses already, so that it is not proposed again."""

import pytest
import torch
from tests.support.simulated_recordings import TorchRun
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from penstock.diagnose.evidence.evidence import gather
from penstock.diagnose.verdict import diagnose, diagnose_run
from penstock.plan.from_diagnosis import plan_from_diagnosis
from penstock.recording.format import EventLine, Gpu
from penstock.watcher.hooks import install
from penstock.watcher.start import WatchedRun


class EventSink:
    def __init__(self):
        self.found = {}

    def put(self, line):
        if isinstance(line, EventLine) and line.what == "in_use":
            self.found |= line.detail

    def close(self):
        pass


@pytest.fixture
def in_use():
    """Return what the hooks have recorded of the training in the test."""
    sink = EventSink()
    run = WatchedRun(None, [sink])
    undo = install(run)
    yield sink.found
    undo()
    run.close()


def train(model, optimizer=None, shape=(4,), dtype=torch.float32, step=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.1)
    for (x,) in DataLoader(TensorDataset(torch.randn(8, *shape, dtype=dtype)), batch_size=2):
        optimizer.zero_grad()
        loss = model(x).float().sum()
        loss.backward()
        (step or optimizer.step)()


def test_a_plain_training_uses_none_of_it(in_use):
    train(nn.Linear(4, 1))
    used = {name for name, value in in_use.items() if value is not False and value}
    assert used == {"parameters", "optimizer"}
    assert (in_use["parameters"], in_use["optimizer"], in_use["autocast"]) == ("float32", "SGD", "")


def test_autocast_is_recorded_with_its_type(in_use):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        train(nn.Linear(4, 1))
    assert in_use["autocast"] == "bfloat16"


def test_the_type_of_the_parameters_is_recorded(in_use):
    train(nn.Linear(4, 1).bfloat16(), dtype=torch.bfloat16)
    assert in_use["parameters"] == "bfloat16"


def test_a_fused_optimizer_is_recorded(in_use):
    model = nn.Linear(4, 1)
    train(model, torch.optim.AdamW(model.parameters(), fused=True))
    assert (in_use["optimizer"], in_use["fused_optimizer"]) == ("AdamW", True)


def test_channels_last_is_recorded(in_use):
    train(nn.Conv2d(3, 2, 3).to(memory_format=torch.channels_last), shape=(3, 8, 8))
    assert in_use["channels_last"] is True


def test_a_model_that_compiles_itself_is_recorded(in_use):
    model = nn.Linear(4, 1)
    model.compile(backend="eager")
    train(model)
    assert in_use["compiled"] is True


def test_a_gradient_scaler_is_recorded(in_use):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu")
    for (x,) in DataLoader(TensorDataset(torch.randn(8, 4)), batch_size=2):
        scaler.scale(model(x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert in_use["grad_scaler"] is True


# -- what is in use is not proposed --------------------------------------------------------------------------------

ALL = {"autocast": "bfloat16", "compiled": True, "channels_last": True, "pinned_batches": True, "non_blocking": True}
TO_TRY = {"precision", "compile", "channels_last"}


def gpu_run(detail, **run_properties):
    """Return a run whose step limits the rate, on a GPU, with these settings in use."""
    events = (EventLine(what="in_use", at_s=0.1, detail=detail),) if detail else ()
    machine = {"machine": {"gpus": (Gpu(name="H200"),)}}
    return TorchRun(step_s=0.2, cpu_s=0.1, system=machine, events=events, **run_properties).recording()


def proposed(recording):
    return {change.name for change in plan_from_diagnosis(diagnose_run(recording)).changes}


def test_what_is_in_use_is_not_proposed():
    assert proposed(gpu_run({})) >= TO_TRY
    assert not proposed(gpu_run(ALL)) & TO_TRY


@pytest.mark.parametrize(
    ("used", "name"),
    [
        ({"autocast": "float16"}, "precision"),
        ({"parameters": "bfloat16"}, "precision"),
        ({"compiled": True}, "compile"),
        ({"cuda_graphs": True}, "compile"),
        ({"channels_last": True}, "channels_last"),
    ],
)
def test_each_is_left_out_alone(used, name):
    assert TO_TRY - proposed(gpu_run(used)) == {name}


def test_batches_that_are_pinned_by_the_script_are_no_pageable_copies():
    pageable = {"phases": {"forward": 0.1, "h2d": 0.08}, "settings": {"pin_memory": False}}
    assert diagnose(gpu_run({}, **pageable)).findings[0].rule == "pageable_copy"
    found = diagnose(gpu_run(ALL, **pageable))
    assert "pageable_copy" not in [finding.rule for finding in found.findings]
    assert "pageable_copy" in [cause.rule for cause in found.rejected]
    assert not proposed(gpu_run(ALL, **pageable)) & {"pin_memory", "copy"}


def test_a_note_of_the_plan_lists_what_is_in_use():
    notes = plan_from_diagnosis(diagnose_run(gpu_run(ALL))).notes
    assert any("autocast (bfloat16), torch.compile, channels_last, pinned batches" in note for note in notes)


def test_recordings_of_earlier_versions_show_nothing_in_use():
    recording = TorchRun().recording()
    assert gather(recording)[0].in_use == {}
