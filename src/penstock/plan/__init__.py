"""Plans: which settings to change, why, and the gain that each change is predicted to give.

from_diagnosis.py          a plan from the diagnosis of a recording
from_probes.py             a plan from separate measurements of the parts of a training
scenario_from_evidence.py  workload, settings and context of a recorded run
proposal.py                proposes settings for torch's DataLoader
setting_changes.py           one function per setting
worker_count.py              limits on num_workers, and the choice of the number
profiles.py                  how much speed to trade for fewer workers and less memory
scenario.py                  a training with given settings: its predicted rate and its memory
predict.py, storage_model.py, memory.py   the models behind a scenario
data_changes.py, step_changes.py, loader_changes.py   changes to data, step and penstock.Loader
document.py, fingerprint.py  a plan as a file, and the machine that it was made for
batch_size.py, batch_size_sweep.py   the batch size, by measuring the user's step
doctor/                    checks of the machine before a run
fleet/                     plans for many ranks
"""
