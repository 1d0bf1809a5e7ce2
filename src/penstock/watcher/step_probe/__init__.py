"""`penstock run --probe compute`: inside the script's process, the step is measured without its data."""
