"""Values and errors that every room shares; standard library only, safe on a Spark executor."""
