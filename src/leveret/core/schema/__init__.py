"""Schema sync: comparison of two schemas, and the changes of a downstream."""
