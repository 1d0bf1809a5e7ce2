"""Callbacks for trainers that own the training loop: `callbacks.lightning.Watch` and `callbacks.hf.Watch`.

Import only the one that is needed, because each imports its framework.
"""
