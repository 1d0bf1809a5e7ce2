"""The watcher's code for torch's DataLoader, in the main process and in the worker processes.

main_process.py makes watched iterators and reads the state of torch's queues; settings.py describes a loader.
worker_process.py runs in the workers, where fetch_timer.py times each batch. worker_files.py carries the results from
the workers to the main process.
"""
