"""`python -m bench constants`: what each constant of the estimators is worth, by how answers change with it."""
