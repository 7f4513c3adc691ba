"""Networks to plan measurement in: what is asked about them, and how it is answered."""
