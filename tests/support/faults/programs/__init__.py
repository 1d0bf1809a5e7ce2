"""Run as files of their own, beside the training: see tests.support.faults.apart."""
