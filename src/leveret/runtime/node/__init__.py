"""The parts of one broker process, and the order in which they start and stop."""
