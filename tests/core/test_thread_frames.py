"""Looking at threads that come and go, while the garbage collector runs whenever it can."""

import subprocess
import sys
import threading

from penstock.core.thread_frames import frames_by_thread

LOOKING = """
import gc, os, sys, threading, time
from penstock.core.thread_frames import frames_by_thread

def look():
    while not done:
        frames_by_thread()

def give_way(phase, info):
    if threading.current_thread() is watcher:
        time.sleep(0.001)  # others have the interpreter

done = []
watcher = threading.Thread(target=look)
gc.callbacks.append(give_way)
gc.set_threshold(1)
watcher.start()
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
watcher.join()
assert gc.isenabled()
print("went on")
"""


def test_every_thread_has_a_frame_and_our_own_is_where_it_was_asked():
    found = frames_by_thread()
    assert found[threading.get_ident()].f_code is frames_by_thread.__code__
    assert set(found) >= {thread.ident for thread in threading.enumerate()}


def test_threads_that_end_and_processes_that_fork_meanwhile_go_on_with_the_collector_as_it_was():
    ran = subprocess.run([sys.executable, "-c", LOOKING], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "went on\n"
