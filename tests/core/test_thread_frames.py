"""Frames of threads that start and end while the garbage collector runs as often as it can."""

import subprocess
import sys
import threading

from penstock.core.thread_frames import frames_by_thread

SAMPLING = """
import gc, os, sys, threading, time
from penstock.core.thread_frames import frames_by_thread

def sample():
    while not done:
        frames_by_thread()

def switch_threads(phase, info):
    if threading.current_thread() is sampler:
        time.sleep(0.001)  # other threads run meanwhile

done = []
sampler = threading.Thread(target=sample)
gc.callbacks.append(switch_threads)
gc.set_threshold(1)
sampler.start()
end = time.monotonic() + 3
while time.monotonic() < end:
    threads = [threading.Thread(target=list) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    child = os.fork()
    if child == 0:
        os._exit(0 if gc.isenabled() and threading.get_ident() in frames_by_thread() else 1)
    assert os.waitpid(child, 0)[1] == 0
done.append(True)
sampler.join()
assert gc.isenabled()
print("done")
"""


def test_every_thread_has_a_frame_and_the_callers_is_in_the_function_itself():
    frames = frames_by_thread()
    assert frames[threading.get_ident()].f_code is frames_by_thread.__code__
    assert set(frames) >= {thread.ident for thread in threading.enumerate()}


def test_sampling_neither_hangs_ending_threads_and_forks_nor_leaves_the_collector_off():
    ran = subprocess.run([sys.executable, "-c", SAMPLING], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "done\n"
