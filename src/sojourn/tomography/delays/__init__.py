"""The most likely delay of every packet at every hop, with its interval."""
