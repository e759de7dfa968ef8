"""Inspection: stored chunks are read again beside their log, checked, compared and repaired."""
