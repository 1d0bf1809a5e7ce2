"""Compares the model's predictions and the results of tuning with measured rates of real DataLoaders."""
