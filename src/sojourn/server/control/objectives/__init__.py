"""Objectives in the control unit: what is assigned for them, how they are judged, and who is told."""
