"""Decode JPEGs on the GPU where their batch arrives: the decoders, the placement into the batch, the CPU/GPU split."""
