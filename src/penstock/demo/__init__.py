"""The whole loop on shards it makes: a training is watched, diagnosed, planned for, and run again with the plan."""
