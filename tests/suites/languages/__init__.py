"""Test suites of clients in other languages than Python.

`catalogue` describes the suites, `sources` brings them, `world` runs one of them beside a broker at the usual ports, in
a network of its own; `outcomes` reads what the suites' runners write. What is in `inside/` runs beside a suite.
"""
