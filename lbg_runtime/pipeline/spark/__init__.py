"""Spark on a group: `format("lbg")` as source and sink, streams to a lake, the validator; the one room with pyspark.

Importing this package does not import pyspark; modules of it that do say so.
"""
