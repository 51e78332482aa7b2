"""From a group to data at rest: the landing log, Spark on it, and what builds on both. Importing it loads neither."""
