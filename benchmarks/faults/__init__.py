"""`make bench-faults`: inject real faults into trainings with real loaders, and score the findings of the diagnosis."""
