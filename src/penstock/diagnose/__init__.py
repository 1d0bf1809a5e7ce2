"""Diagnosis: names the causes of stalls, from a recording or from a plain training log.

evidence/         the evidence that a recording gives for one loader, and what several rules compute from it
rules/            the rules: one file for each cause
suspect.py        the answer of a rule
verdict.py        diagnose: evidence → answers of the rules → gains → ranked findings
impact.py         the cost of waiting for data
worker_curve.py   samples per second against the number of workers, for the reports
ranks/            several ranks of one run: which of them delays the others, and why
training_log/     diagnosis of a plain training log, without a recording
rules_page.py     generates docs/rules.md
"""
