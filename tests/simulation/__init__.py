"""Faults that are put into the product to see that the simulator finds them: `python -m tests.simulation`."""
