"""Benchmarks of the training helpers: samplers, steps on the CPU and, in gpu.py, steps on a GPU."""
