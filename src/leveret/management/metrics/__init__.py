"""Prometheus: one module for each subject of the metrics."""
