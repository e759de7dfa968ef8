"""Standby: the downstream of message replication - the transfer, promotion, rehearsal and the way back."""
