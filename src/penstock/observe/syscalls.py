"""What a thread in a system call is doing, by the call's number: Linux on x86_64 and aarch64."""

from __future__ import annotations

import platform

_X86_64 = {
    "read": (0, 17, 19, 40, 187, 208, 275, 295, 326, 327, 426),  # read, pread64, readv, sendfile, …, io_uring_enter
    "open": (2, 3, 4, 5, 6, 8, 21, 78, 79, 82, 83, 87, 89, 217, 257, 262, 263, 267, 269, 332, 437, 439),
    "lock": (65, 72, 73, 202, 220, 449),  # semop, fcntl, flock, futex, semtimedop, futex_waitv
    "sleep": (34, 35, 230),  # pause, nanosleep, clock_nanosleep
    "network": (7, 23, 42, 43, 44, 45, 46, 47, 232, 270, 271, 281, 288, 299, 307),
    "write": (1, 18, 20, 26, 74, 75, 77, 162, 277, 285, 296, 306, 328),  # write, …, msync, fsync, fdatasync
}
_AARCH64 = {
    "read": (4, 63, 65, 67, 69, 71, 76, 213, 285, 286, 426),
    "open": (17, 34, 35, 48, 56, 57, 61, 62, 78, 79, 80, 276, 291, 437, 439),
    "lock": (25, 32, 98, 192, 193, 449),
    "sleep": (101, 115),
    "network": (22, 72, 73, 202, 203, 206, 207, 211, 212, 242, 243, 269),
    "write": (46, 47, 64, 66, 68, 70, 81, 82, 83, 84, 227, 267, 287),
}

_TABLE = {"x86_64": _X86_64, "aarch64": _AARCH64}.get(platform.machine(), {})
STATES: dict[int, str] = {number: state for state, numbers in _TABLE.items() for number in numbers}
"""Call number → read (file input), open (metadata), lock, sleep, network, write. What is not here is "other"."""
FUTEX: int | None = {"x86_64": 202, "aarch64": 98}.get(platform.machine())
