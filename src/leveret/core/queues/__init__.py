"""Queues: what each type of queue holds, delivers, settles and drops."""
