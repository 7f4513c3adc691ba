"""Commands on two observation points: `measure`, `record` and `estimate`."""
