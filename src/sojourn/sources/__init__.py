"""Node metrics as measurements: disk IO, CPU time, memory, flows, round-trip times and packets, through one interface."""
