"""Simulated nodes, and the observation of their promises, disks and copies."""
