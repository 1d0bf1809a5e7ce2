"""Whether Ctrl-C was pressed while a child ran: its exit code does not always say so."""

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
TELLS_ITS_PARENT = """
import os, signal
signal.signal(signal.SIGINT, lambda number, frame: os._exit({code}))
os.kill(os.getppid(), signal.SIGINT)
while True:
    signal.pause()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="signals are passed on where there are process groups")
@pytest.mark.parametrize(
    ("child", "end"),
    [
        (TELLS_ITS_PARENT.format(code=1), "1 True"),
        (TELLS_ITS_PARENT.format(code=0), "0 True"),
        ("raise SystemExit(1)", "1 False"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "-9 False"),
    ],
)
def test_an_interrupt_that_was_passed_on_is_remembered_whatever_the_child_makes_of_it(child, end):
    run = subprocess.run([sys.executable, "-c", RUNNER, child], capture_output=True, text=True, timeout=60)
    assert run.stdout.strip() == end, run.stderr
