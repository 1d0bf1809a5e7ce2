"""`make bench-plan`: what the model predicts and what tuning finds, beside what real DataLoaders then do."""
