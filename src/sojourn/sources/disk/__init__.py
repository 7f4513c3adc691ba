"""Disk IO per process: block tracepoints as root, system calls otherwise."""
