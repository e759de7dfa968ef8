"""Applications that publish and consume, their records, and the audit of both."""
