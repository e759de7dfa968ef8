"""The simulated machine: loop and clock, processes, network and disks."""
