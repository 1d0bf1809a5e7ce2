"""Tests of this room find what those of diagnoses make (made.py), and what ranks ask for (fleet_needs.py)."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "diagnose"))
sys.path.append(str(Path(__file__).parent))
