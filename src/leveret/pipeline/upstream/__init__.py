"""The pipeline's connections to the upstream: a blocking client of the stream protocol."""
