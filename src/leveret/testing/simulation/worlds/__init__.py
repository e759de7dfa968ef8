"""Simulated worlds: nodes, applications, and faults that a seed decides."""
