"""Each paper's experiments, run again: as published, with our decoders, and with the baselines compared to."""
