"""Replication: joins, replicas in sync, placement of queues and mirrors, elections."""
