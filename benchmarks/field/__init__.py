"""The diagnosis against public training scripts, unchanged; the truth of each setting is measured."""
