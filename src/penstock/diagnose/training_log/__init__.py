"""Diagnosis from a plain training log, without a recording.

A log shows less than a recording. The diagnosis states what the log proves, lists the causes that the log cannot
separate, and names the experiment that would separate them. The files, in the order of the flow:

    read.py              file → TrainingLog: decodes the file and gives every line to the formats
    formats.py           one parse function per log format (slow-batch reports, timm, MMEngine, Lightning, tqdm,
                         HF Trainer, the user's own --pattern)
    parsed_log.py        TrainingLog and one class per kind of log line
    log_settings.py      num_workers, prefetch_factor and batch_size, from the log or from the user
    verdict.py           diagnose_log: the entry point; tries the next two files, else reports the rate alone
    slow_batches.py      diagnosis of a log that names its slow batches
    data_share.py        diagnosis of a log that gives mean step times and data times
    periodicity.py       the period of slow batches, and the throughput over whole periods
    trend.py             whether a series is steady, changes once, or drifts
    candidate_causes.py  the three causes that look the same in a log, with their gain
    facts.py             sentences with numbers that state what a log shows
"""
