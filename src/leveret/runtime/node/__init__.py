"""The node: what one broker process consists of, in which order it starts and stops."""
