"""Replication of the whole data directory: leader, followers, and the identity of each node."""
