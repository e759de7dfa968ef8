"""Replication: joins, who is in sync, where queues and mirrors are placed, elections."""
