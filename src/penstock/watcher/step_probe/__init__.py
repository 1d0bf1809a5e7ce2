"""`penstock run --probe compute`: measures the step of a script, inside its process, without the time of its data.

probe.py patches the loaders of the script, and stages.py decides what is measured when. probed_loaders.py describes one
loader of the script, repeated_batch.py delivers one batch over and over, and cpu_load.py keeps cores busy.
"""
