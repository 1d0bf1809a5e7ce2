"""Diagnosis from a plain training log, without a recording.

A log shows less than a recording. The diagnosis states what the log proves, lists the causes that the log cannot
separate, and names the experiment that would separate them. The files, in the order of the flow:

    read.py              parse: file → TrainingLog; decodes the file and passes every line to the formats
    formats.py           parse: one function per log format (slow-batch reports, timm, MMEngine, Lightning, tqdm,
                         HF Trainer, the user's own --pattern)
    parsed_log.py        parse: TrainingLog, one class per kind of log line, and the settings of the run
    periodicity.py       facts: the period of slow batches, and the throughput over whole periods
    spans.py             facts: sums of step time and data time over consecutive steps
    trend.py             facts: whether a series is steady, changes once, or drifts
    facts.py             facts: the sentences that state them, with numbers
    verdict.py           verdict: diagnose_log, the entry point, and the diagnosis of a log of mean times
    slow_batches.py      verdict: the diagnosis of a log that names its slow batches
    candidate_causes.py  verdict: the three causes that leave the same trace in a log, with their gain
"""
