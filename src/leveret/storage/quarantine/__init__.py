"""Quarantine: divergent records, moved out of a log, with a report of each log."""
