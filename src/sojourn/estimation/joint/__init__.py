"""Joint decoding: sizes, losses and delays of all flows on a key list at once."""
