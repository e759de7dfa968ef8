"""Collecting: the outgoing logs of an upstream, which downstreams transfer."""
