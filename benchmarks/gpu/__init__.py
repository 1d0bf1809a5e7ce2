"""Benchmarks of the GPU path: copies to the GPU, decoding and transforms on it, and trainings. Need a CUDA device."""
