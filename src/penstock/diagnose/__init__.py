"""From a recording or a training log to named causes: one rule a file, ranked by what removing it would give."""
