"""Decisions: events in, effects out. No protocol, no I/O, no clock."""
