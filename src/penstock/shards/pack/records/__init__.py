"""Reads the records of other dataset formats as samples: Parquet, MDS, TFRecord, LMDB and HDF5.

find (which files, which format) → one reader per format → columns (the part that each column of a record becomes)

A reader takes part in a pack as shards and loose files do: it lists the records of a file as an index, and returns the
parts of the samples of a task.
"""
