"""Commands that make worlds to try the others on, `lab`, or show them at work, `demo`."""
