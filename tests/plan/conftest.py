"""Tests of this room find the recordings that tests of diagnoses make: made.py."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "diagnose"))
