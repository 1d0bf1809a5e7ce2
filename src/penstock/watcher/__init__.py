"""Door 2: sees where every training step's time goes, without changing what the training does."""
