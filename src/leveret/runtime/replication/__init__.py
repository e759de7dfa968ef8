"""Replication of the whole data directory: leader, followers, and who is which."""
