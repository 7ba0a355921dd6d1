"""What measures the README's numbers: one folder for each claim."""
