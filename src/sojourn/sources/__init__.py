"""Node metrics as measurements, by one interface: disk IO, CPU time, memory, flows, round-trip times, packets."""
