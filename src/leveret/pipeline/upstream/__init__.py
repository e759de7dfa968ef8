"""The upstream as the pipeline reaches it: a blocking client of the stream protocol."""
