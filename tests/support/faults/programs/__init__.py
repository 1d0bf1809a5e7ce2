"""Programs that run as separate processes beside a training; see tests.support.faults.detached_process."""
