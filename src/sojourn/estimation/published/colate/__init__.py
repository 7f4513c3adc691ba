"""COLATE as published: Theorems 2 to 4 and the loss variant."""
