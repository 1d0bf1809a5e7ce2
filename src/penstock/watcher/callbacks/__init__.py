"""For trainers that own the loop: `callbacks.lightning.Watch`, `callbacks.hf.Watch`; import the one you need."""
