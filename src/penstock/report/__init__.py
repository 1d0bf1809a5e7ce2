"""Reports: what each command of `penstock` prints or writes.

A module is named after the command whose results it shows (`report/plan.py` for `penstock plan`). The reports of a run
are `diagnose` (terminal), `markdown`, `html` (one page, drawn from `plots`) and `trace`; they share the facts in
`run_summary`. `text` has the tables and the escaping that all reports use.
"""
