"""From a group to data at rest: the landing log, Spark on it, and what is made of both. Importing it loads neither."""
