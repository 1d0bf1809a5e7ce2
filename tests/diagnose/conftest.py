"""Tests of this room find made.py here."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
