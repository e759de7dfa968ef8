"""Collecting: the upstream of message replication - the outgoing logs that downstreams transfer."""
