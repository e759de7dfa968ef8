"""Message rates: samples of counters, their history, the rates that follow."""
