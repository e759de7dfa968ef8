"""Standby: the downstream of message replication - transfer, promotion, rehearsal and rejoin."""
