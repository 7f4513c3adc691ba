"""The commands: one module each, parsing and printing only; heavy imports wait until one runs."""
