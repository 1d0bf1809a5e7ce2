"""The same tasks on a Ray cluster: join it, see that all nodes see the same files, run.

join → run (head, witness) → index
"""
