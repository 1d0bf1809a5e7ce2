"""Benchmark of the model for many ranks: its predictions compared with real ranks, and a table up to 1024 GPUs."""
