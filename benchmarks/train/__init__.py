"""What the training helpers cost and save: samplers here, steps on the CPU here and on a GPU in `gpu`."""
