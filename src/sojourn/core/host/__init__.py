"""How a program stands in its machine: its configuration files, its service manager, its privileges."""
