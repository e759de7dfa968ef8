"""Queues: storage, delivery, settlement and limits of each queue type."""
