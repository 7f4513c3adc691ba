"""Collections: packets of sinks in, delays at every hop out."""
