"""Tests that `run_child` reports a Ctrl-C that was pressed while the child ran."""

import os
import subprocess
import sys

import pytest

RUNNER = """
import os, sys
from penstock.watcher.script.child_process import run_child
pid, code, interrupted = run_child([sys.executable, "-c", sys.argv[1]], dict(os.environ))
print(code, interrupted)
"""
SENDS_CTRL_C_TO_ITS_PARENT = """
import os, signal
signal.signal(signal.SIGINT, lambda number, frame: os._exit({code}))
os.kill(os.getppid(), signal.SIGINT)
while True:
    signal.pause()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="signals are forwarded only where there are process groups")
@pytest.mark.parametrize(
    ("program", "printed"),
    [
        (SENDS_CTRL_C_TO_ITS_PARENT.format(code=1), "1 True"),
        (SENDS_CTRL_C_TO_ITS_PARENT.format(code=0), "0 True"),
        ("raise SystemExit(1)", "1 False"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "-9 False"),
    ],
)
def test_a_forwarded_interrupt_is_reported_whatever_the_childs_exit_code(program, printed):
    run = subprocess.run([sys.executable, "-c", RUNNER, program], capture_output=True, text=True, timeout=60)
    assert run.stdout.strip() == printed, run.stderr
