"""Commands that make worlds to try the others on: `lab` and `demo`."""
