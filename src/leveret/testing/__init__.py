"""What tests, the demo and the benchmarks need to run real brokers.

May import every other room; none of them imports this one.
"""
