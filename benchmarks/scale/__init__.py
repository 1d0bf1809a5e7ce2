"""Many ranks: what the model says of them, beside real ones on this machine, and a table up to 1024."""
