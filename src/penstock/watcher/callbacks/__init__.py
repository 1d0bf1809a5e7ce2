"""Callbacks for trainers that own the training loop: `lightning.LightningWatch` and `hf.TrainerWatch`.

Import only the one that is needed, because each imports its framework.
"""
