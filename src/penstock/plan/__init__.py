"""What to change in a training and what it should give: prediction, memory, profiles, proposals, probes."""
