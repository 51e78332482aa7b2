"""Spark on a group: `format("lbg")` as source and sink, streams to a lake, the validator; the one room with pyspark.

Importing this package imports no pyspark; its modules do where they say so.
"""
