"""Runs commands as a user does: the installed program, in a process of its own."""

import json
import subprocess
import sys

import pytest


class Ran:
    def __init__(self, done):
        self.code = done.returncode
        self.out = done.stdout
        self.err = done.stderr

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture
def penstock(tmp_path):
    def run(*arguments, cwd=tmp_path):
        command = [sys.executable, "-m", "penstock", *map(str, arguments)]
        return Ran(subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120))

    return run
