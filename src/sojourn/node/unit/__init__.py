"""Node units of one dependency-free file each, for CPython and MicroPython."""
