"""The parts of `penstock run`: start a script, let each process that trains record itself, and apply a plan to it."""
