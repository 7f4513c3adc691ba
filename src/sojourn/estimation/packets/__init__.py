"""How many packets each flow sent and lost: one posterior from cells, samples and totals."""
